//! Shapes and strides: how many elements there are, and how far they reach.

#![forbid(unsafe_code)]

/// The number of elements; `None` if it exceeds the address space.
pub(super) fn count(shape: &[usize]) -> Option<usize> {
    // One empty dimension is enough, however long the others are.
    if shape.contains(&0) {
        return Some(0);
    }
    shape
        .iter()
        .try_fold(1, |all: usize, len| all.checked_mul(*len))
}

/// The strides of elements without gaps, the last dimension first; `None` if one exceeds the address space. An empty
/// dimension counts as one of length 1, as elsewhere.
pub(super) fn row_major(shape: &[usize]) -> Option<Vec<usize>> {
    let mut stride = Some(1_usize);
    let mut strides = vec![0; shape.len()];
    for (place, len) in strides.iter_mut().zip(shape).rev() {
        *place = stride?;
        stride = stride.and_then(|stride| stride.checked_mul(*len.max(&1)));
    }
    Some(strides)
}

/// How many elements the memory needs, from the first element to the last; `None` if that exceeds the address space.
pub(super) fn reach(shape: &[usize], strides: &[usize]) -> Option<usize> {
    if shape.contains(&0) {
        return Some(0);
    }
    let ends = shape
        .iter()
        .zip(strides)
        .map(|(len, stride)| (len - 1).checked_mul(*stride));
    ends.into_iter()
        .try_fold(1, |reach: usize, end| reach.checked_add(end?))
}

/// Whether these are the strides of elements without gaps. What is not counted does not matter: strides of dimensions
/// of length 1, and all of them if there are no elements.
pub(super) fn is_row_major(shape: &[usize], strides: &[i64]) -> bool {
    if shape.contains(&0) {
        return true;
    }
    let Some(wanted) = row_major(shape) else {
        return false;
    };
    let mut all = shape.iter().zip(wanted).zip(strides);
    all.all(|((len, wanted), stride)| *len == 1 || usize::try_from(*stride) == Ok(wanted))
}

/// The numbers as DLPack has them; `None` if one is too large.
pub(super) fn signed(numbers: &[usize]) -> Option<Vec<i64>> {
    numbers
        .iter()
        .map(|number| i64::try_from(*number).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: usize = usize::MAX;

    #[test]
    fn elements_are_counted_without_overflow() {
        for (shape, expected) in [
            (&[][..], Some(1)),
            (&[7], Some(7)),
            (&[2, 3, 4], Some(24)),
            (&[2, 0, 4], Some(0)),
            (&[MAX, 0, MAX], Some(0)),
            (&[MAX, 1], Some(MAX)),
            (&[MAX, 2], None),
            (&[1 << 32, 1 << 32], None),
        ] {
            assert_eq!(count(shape), expected, "{shape:?}");
        }
    }

    #[test]
    fn strides_without_gaps_grow_from_the_last_dimension() {
        assert_eq!(row_major(&[]), Some(vec![]));
        assert_eq!(row_major(&[5]), Some(vec![1]));
        assert_eq!(row_major(&[2, 3, 4]), Some(vec![12, 4, 1]));
        assert_eq!(row_major(&[2, 0, 4]), Some(vec![4, 4, 1]));
        // The first dimension's length is in no stride.
        assert_eq!(row_major(&[MAX, MAX]), Some(vec![MAX, 1]));
        assert_eq!(row_major(&[2, MAX, 2]), None);
    }

    #[test]
    fn memory_reaches_to_the_last_element() {
        for (shape, strides, expected) in [
            (&[][..], &[][..], Some(1)),
            (&[2, 3], &[3, 1], Some(6)),
            (&[2, 3], &[1, 2], Some(6)),
            (&[2, 3], &[10, 2], Some(15)),
            (&[1000, 3], &[0, 1], Some(3)),
            (&[0, 3], &[MAX, MAX], Some(0)),
            (&[1, 3], &[MAX, 1], Some(3)),
            (&[2, 1], &[MAX, 1], None),
            (&[3, 1], &[MAX, 1], None),
        ] {
            assert_eq!(reach(shape, strides), expected, "{shape:?} {strides:?}");
        }
    }

    #[test]
    fn strides_that_are_not_counted_do_not_matter() {
        for (shape, strides, expected) in [
            (&[][..], &[][..], true),
            (&[2, 3], &[3, 1], true),
            (&[2, 3], &[1, 2], false),
            (&[2, 3], &[-3, 1], false),
            (&[2, 3], &[4, 1], false),
            (&[1, 3], &[-99, 1], true),
            (&[3, 1], &[1, 0], true),
            (&[0, 3], &[77, -5], true),
            (&[2, MAX, 2], &[0, 2, 1], false),
        ] {
            assert_eq!(
                is_row_major(shape, strides),
                expected,
                "{shape:?} {strides:?}"
            );
        }
    }

    #[test]
    fn numbers_too_large_for_dlpack_are_found() {
        assert_eq!(signed(&[0, 7]), Some(vec![0, 7]));
        assert_eq!(signed(&[1, MAX]), None);
    }
}

//! Elements, and how several become one.

use cuda_driver_sys::nccl::{ncclDataType_t, ncclRedOp_t};

/// Bytes of one element; `None` for a type that is newer than the bindings.
pub(crate) fn size_of_element(ty: ncclDataType_t) -> Option<usize> {
    Some(match ty {
        ncclDataType_t::ncclInt8 | ncclDataType_t::ncclUint8 => 1,
        ncclDataType_t::ncclFloat16 | ncclDataType_t::ncclBfloat16 => 2,
        ncclDataType_t::ncclInt32 | ncclDataType_t::ncclUint32 | ncclDataType_t::ncclFloat32 => 4,
        ncclDataType_t::ncclInt64 | ncclDataType_t::ncclUint64 | ncclDataType_t::ncclFloat64 => 8,
        _ => return None,
    })
}

pub(crate) fn is_known(op: ncclRedOp_t) -> bool {
    op.0 <= ncclRedOp_t::ncclAvg.0
}

/// Combines inputs of equal length, element by element, in their order.
pub(crate) fn reduce(ty: ncclDataType_t, op: ncclRedOp_t, inputs: &[&[u8]]) -> Vec<u8> {
    macro_rules! integers {
        ($ty:ty) => {
            combine(inputs, <$ty>::from_ne_bytes, <$ty>::to_ne_bytes, |all| {
                integer_op!($ty, op, all)
            })
        };
    }
    macro_rules! integer_op {
        ($ty:ty, $op:expr, $all:expr) => {{
            let all: &[$ty] = $all;
            let first = all[0];
            let rest = all[1..].iter().copied();
            match $op {
                ncclRedOp_t::ncclProd => rest.fold(first, <$ty>::wrapping_mul),
                ncclRedOp_t::ncclMax => rest.fold(first, <$ty>::max),
                ncclRedOp_t::ncclMin => rest.fold(first, <$ty>::min),
                ncclRedOp_t::ncclAvg => {
                    let sum = rest.fold(first, <$ty>::wrapping_add);
                    // More ranks than an i8 has numbers are not simulated.
                    <$ty>::try_from(all.len()).map_or(0, |count| sum / count)
                }
                _ => rest.fold(first, <$ty>::wrapping_add),
            }
        }};
    }
    macro_rules! floats {
        ($ty:ty, $from:expr, $to:expr) => {
            combine(inputs, $from, $to, |all: &[$ty]| {
                let first = all[0];
                let rest = all[1..].iter().copied();
                match op {
                    ncclRedOp_t::ncclProd => rest.fold(first, |a, b| a * b),
                    ncclRedOp_t::ncclMax => rest.fold(first, <$ty>::max),
                    ncclRedOp_t::ncclMin => rest.fold(first, <$ty>::min),
                    ncclRedOp_t::ncclAvg => {
                        rest.fold(first, |a, b| a + b) / (all.len() as u16 as $ty)
                    }
                    _ => rest.fold(first, |a, b| a + b),
                }
            })
        };
    }
    match ty {
        ncclDataType_t::ncclInt8 => integers!(i8),
        ncclDataType_t::ncclUint8 => integers!(u8),
        ncclDataType_t::ncclInt32 => integers!(i32),
        ncclDataType_t::ncclUint32 => integers!(u32),
        ncclDataType_t::ncclInt64 => integers!(i64),
        ncclDataType_t::ncclUint64 => integers!(u64),
        ncclDataType_t::ncclFloat32 => floats!(f32, f32::from_ne_bytes, f32::to_ne_bytes),
        ncclDataType_t::ncclFloat64 => floats!(f64, f64::from_ne_bytes, f64::to_ne_bytes),
        ncclDataType_t::ncclFloat16 => {
            floats!(f32, |bytes| from_half(u16::from_ne_bytes(bytes)), |value| {
                to_half(value).to_ne_bytes()
            })
        }
        _ => floats!(
            f32,
            |bytes| from_bfloat(u16::from_ne_bytes(bytes)),
            |value| to_bfloat(value).to_ne_bytes()
        ),
    }
}

fn combine<T: Copy, const N: usize>(
    inputs: &[&[u8]],
    from: impl Fn([u8; N]) -> T,
    to: impl Fn(T) -> [u8; N],
    op: impl Fn(&[T]) -> T,
) -> Vec<u8> {
    let columns: Vec<&[[u8; N]]> = inputs
        .iter()
        .map(|input| input.as_chunks::<N>().0)
        .collect();
    let count = columns.iter().map(|column| column.len()).min().unwrap_or(0);
    let mut all = Vec::with_capacity(columns.len());
    let mut result = Vec::with_capacity(count * N);
    for index in 0..count {
        all.clear();
        all.extend(columns.iter().map(|column| from(column[index])));
        result.extend(to(op(&all)));
    }
    result
}

fn from_bfloat(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Rounds to nearest, ties to even.
fn to_bfloat(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    let round = 0x7fff + ((bits >> 16) & 1);
    ((bits + round) >> 16) as u16
}

fn from_half(bits: u16) -> f32 {
    let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
    let exponent = i32::from(bits >> 10 & 0x1f);
    let fraction = f32::from(bits & 0x3ff);
    match exponent {
        0 => sign * fraction * 2_f32.powi(-24),
        0x1f if fraction == 0.0 => sign * f32::INFINITY,
        0x1f => f32::NAN,
        _ => sign * (1024.0 + fraction) * 2_f32.powi(exponent - 25),
    }
}

/// Rounds to nearest, ties to even.
fn to_half(value: f32) -> u16 {
    let sign = (value.to_bits() >> 16) as u16 & 0x8000;
    if value.is_nan() {
        return sign | 0x7e00;
    }
    let size = value.abs();
    // Half of the way from the largest number to the next power.
    if size >= 65_520.0 {
        return sign | 0x7c00;
    }
    let exponent = ((size.to_bits() >> 23) as i32 - 127).max(-14);
    // The number in units of its last place, at most 2048, where a carry gives the next exponent.
    let units = (size * 2_f32.powi(10 - exponent)).round_ties_even() as u16;
    let exponent = (exponent + 14) as u16;
    sign | ((exponent << 10) + units)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUM: ncclRedOp_t = ncclRedOp_t::ncclSum;
    const PROD: ncclRedOp_t = ncclRedOp_t::ncclProd;
    const MAX: ncclRedOp_t = ncclRedOp_t::ncclMax;
    const MIN: ncclRedOp_t = ncclRedOp_t::ncclMin;
    const AVG: ncclRedOp_t = ncclRedOp_t::ncclAvg;

    /// All operations of 12 and 3, in bytes of the type.
    fn check<const N: usize>(ty: ncclDataType_t, bytes: impl Fn(u8) -> [u8; N], half: [u8; N]) {
        assert_eq!(size_of_element(ty), Some(N));
        let (a, b) = (bytes(12), bytes(3));
        let of = |op| reduce(ty, op, &[&a, &b]);
        assert_eq!(of(SUM), bytes(15), "{ty:?}");
        assert_eq!(of(PROD), bytes(36), "{ty:?}");
        assert_eq!(of(MAX), a, "{ty:?}");
        assert_eq!(of(MIN), b, "{ty:?}");
        assert_eq!(of(AVG), half, "{ty:?}");
    }

    #[test]
    fn every_type_has_every_operation() {
        check(ncclDataType_t::ncclInt8, |it| [it], [7]);
        check(ncclDataType_t::ncclUint8, |it| [it], [7]);
        let i32s = |it| i32::from(it).to_ne_bytes();
        check(ncclDataType_t::ncclInt32, i32s, 7_i32.to_ne_bytes());
        let u32s = |it| u32::from(it).to_ne_bytes();
        check(ncclDataType_t::ncclUint32, u32s, 7_u32.to_ne_bytes());
        let i64s = |it| i64::from(it).to_ne_bytes();
        check(ncclDataType_t::ncclInt64, i64s, 7_i64.to_ne_bytes());
        let u64s = |it| u64::from(it).to_ne_bytes();
        check(ncclDataType_t::ncclUint64, u64s, 7_u64.to_ne_bytes());
        let f32s = |it| f32::from(it).to_ne_bytes();
        check(ncclDataType_t::ncclFloat32, f32s, 7.5_f32.to_ne_bytes());
        let f64s = |it| f64::from(it).to_ne_bytes();
        check(ncclDataType_t::ncclFloat64, f64s, 7.5_f64.to_ne_bytes());
        let halves = |it| to_half(f32::from(it)).to_ne_bytes();
        check(
            ncclDataType_t::ncclFloat16,
            halves,
            to_half(7.5).to_ne_bytes(),
        );
        let bfloats = |it| to_bfloat(f32::from(it)).to_ne_bytes();
        check(
            ncclDataType_t::ncclBfloat16,
            bfloats,
            to_bfloat(7.5).to_ne_bytes(),
        );
        assert_eq!(size_of_element(ncclDataType_t(10)), None);
        assert!(!is_known(ncclRedOp_t(5)));
    }

    #[test]
    fn halves_have_their_known_bits() {
        for (value, bits) in [
            (0.0, 0),
            (-0.0, 0x8000),
            (1.0, 0x3c00),
            (-2.0, 0xc000),
            (65_504.0, 0x7bff),
            (65_520.0, 0x7c00),
            (2_f32.powi(-24), 1),
            (2_f32.powi(-14), 0x400),
            // Halfway: to the even one.
            (2049.0, 0x6800),
            (2051.0, 0x6802),
            // Rounds up to the next exponent.
            (2047.9, 0x6800),
        ] {
            assert_eq!(to_half(value), bits, "{value}");
        }
        for bits in 0..=u16::MAX {
            let value = from_half(bits);
            if !value.is_nan() {
                assert_eq!(to_half(value), bits);
            }
        }
        assert!(from_half(to_half(f32::NAN)).is_nan());
    }

    #[test]
    fn the_upper_half_of_a_float_is_rounded() {
        for bits in 0..=u16::MAX {
            let value = from_bfloat(bits);
            if !value.is_nan() {
                assert_eq!(to_bfloat(value), bits);
            }
        }
        assert_eq!(to_bfloat(f32::from_bits(0x3f80_8000)), 0x3f80);
        assert_eq!(to_bfloat(f32::from_bits(0x3f81_8000)), 0x3f82);
        assert!(from_bfloat(to_bfloat(f32::NAN)).is_nan());
    }
}

//! Tensors without a driver: who deletes them, and which descriptions are refused.

use std::ffi::c_void;
use std::ptr::{self, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::import::Described;
use super::*;
use crate::ErrorKind;

/// Memory of a producer, and how often it was taken back. The memory is never touched.
struct Fixture {
    deleted: Arc<AtomicUsize>,
    shape: [i64; 2],
    strides: [i64; 2],
}

impl Fixture {
    fn new() -> Self {
        Self {
            deleted: Arc::default(),
            shape: [2, 3],
            strides: [3, 1],
        }
    }

    fn deleted(&self) -> usize {
        self.deleted.load(Ordering::Relaxed)
    }

    fn context(&self) -> *mut c_void {
        Arc::into_raw(Arc::clone(&self.deleted)).cast_mut().cast()
    }

    /// Two rows of three `f32`.
    fn description(&mut self) -> DLTensor {
        DLTensor {
            data: ptr::without_provenance_mut(0x1000),
            device: DLDevice {
                device_type: DLDeviceType::CUDA,
                device_id: 0,
            },
            ndim: 2,
            dtype: DLDataType::F32,
            shape: self.shape.as_mut_ptr(),
            strides: self.strides.as_mut_ptr(),
            byte_offset: 0,
        }
    }

    fn versioned(&mut self) -> *mut DLManagedTensorVersioned {
        unsafe extern "C" fn delete(raw: *mut DLManagedTensorVersioned) {
            // SAFETY: made below, and deleted once.
            let managed = unsafe { Box::from_raw(raw) };
            // SAFETY: made by `context`.
            let deleted = unsafe { Arc::from_raw(managed.manager_ctx.cast::<AtomicUsize>()) };
            deleted.fetch_add(1, Ordering::Relaxed);
        }
        let dl_tensor = self.description();
        Box::into_raw(Box::new(DLManagedTensorVersioned {
            version: DLPackVersion { major: 1, minor: 9 },
            manager_ctx: self.context(),
            deleter: Some(delete),
            flags: TensorFlags::empty(),
            dl_tensor,
        }))
    }

    fn unversioned(&mut self) -> *mut DLManagedTensor {
        unsafe extern "C" fn delete(raw: *mut DLManagedTensor) {
            // SAFETY: made below, and deleted once.
            let managed = unsafe { Box::from_raw(raw) };
            // SAFETY: made by `context`.
            let deleted = unsafe { Arc::from_raw(managed.manager_ctx.cast::<AtomicUsize>()) };
            deleted.fetch_add(1, Ordering::Relaxed);
        }
        let dl_tensor = self.description();
        Box::into_raw(Box::new(DLManagedTensor {
            dl_tensor,
            manager_ctx: self.context(),
            deleter: Some(delete),
        }))
    }

    fn tensor(&mut self) -> ManagedTensor {
        // SAFETY: made just now; its deleter only counts.
        unsafe { ManagedTensor::from_raw(self.versioned()) }
    }
}

#[test]
fn a_tensor_is_deleted_once_by_whoever_has_it_last() {
    let mut fixture = Fixture::new();
    let tensor = fixture.tensor();
    assert_eq!(tensor.tensor().map(|tensor| tensor.ndim), Some(2));
    let raw = tensor.into_raw();
    assert_eq!(fixture.deleted(), 0);
    // SAFETY: handed out just now, and nobody else has it.
    let tensor = unsafe { ManagedTensor::from_raw(raw) };
    std::thread::scope(|scope| scope.spawn(move || drop(tensor)).join()).expect("no panic");
    assert_eq!(fixture.deleted(), 1);
}

#[test]
fn a_tensor_without_a_deleter_is_left_alone() {
    let mut fixture = Fixture::new();
    let raw = fixture.versioned();
    // SAFETY: made just now.
    let mut managed = unsafe { Box::from_raw(raw) };
    managed.deleter = None;
    // SAFETY: nothing is deleted, and the box lives on.
    drop(unsafe { ManagedTensor::from_raw(&raw mut *managed) });
    assert_eq!(fixture.deleted(), 0);
    // SAFETY: made by `context`, and no deleter has taken it.
    drop(unsafe { Arc::from_raw(managed.manager_ctx.cast::<AtomicUsize>()) });
}

#[test]
fn a_tensor_loses_its_version_and_gets_one_again() {
    let mut fixture = Fixture::new();
    let raw = fixture.tensor().into_raw_unversioned();
    let raw = raw.expect("it has no flags");
    // SAFETY: handed out just now.
    let tensor = unsafe { ManagedTensor::from_raw_unversioned(raw) };
    assert_eq!(tensor.version(), DLPackVersion::CURRENT);
    let shape = tensor.tensor().map(|tensor| tensor.shape);
    assert_eq!(shape, Some(fixture.shape.as_mut_ptr()));
    assert_eq!(fixture.deleted(), 0);
    drop(tensor);
    assert_eq!(fixture.deleted(), 1);

    let raw = fixture.unversioned();
    // SAFETY: made just now; its deleter only counts.
    drop(unsafe { ManagedTensor::from_raw_unversioned(raw) });
    assert_eq!(fixture.deleted(), 2);
}

#[test]
fn what_cannot_be_said_without_a_version_is_refused() {
    let mut fixture = Fixture::new();
    let raw = fixture.versioned();
    // SAFETY: made just now.
    unsafe { (*raw).flags = TensorFlags::READ_ONLY };
    // SAFETY: as above.
    let tensor = unsafe { ManagedTensor::from_raw(raw) };
    let failed = tensor.into_raw_unversioned().expect_err("it has a flag");
    assert_eq!(failed.error.kind(), ErrorKind::NotSupported);
    assert!(failed.error.to_string().contains("READ_ONLY"), "{failed}");
    assert_eq!(fixture.deleted(), 0);
    drop(failed);
    assert_eq!(fixture.deleted(), 1);
}

#[test]
fn of_another_version_only_the_deleter_is_used() {
    let mut fixture = Fixture::new();
    let raw = fixture.versioned();
    // SAFETY: made just now.
    unsafe { (*raw).version.major = 2 };
    // SAFETY: as above.
    let tensor = unsafe { ManagedTensor::from_raw(raw) };
    assert!(tensor.tensor().is_none());
    assert!(format!("{tensor:?}").contains("major: 2"), "{tensor:?}");
    let failed = tensor.into_raw_unversioned().expect_err("another version");
    assert!(failed.error.to_string().contains("DLPack 2.9"), "{failed}");
    drop(failed);
    assert_eq!(fixture.deleted(), 1);
}

/// The kind and text of the refusal of a changed description.
fn refusal(change: impl FnOnce(&mut DLTensor)) -> (ErrorKind, String) {
    let mut fixture = Fixture::new();
    let mut tensor = fixture.description();
    change(&mut tensor);
    // SAFETY: the fixture has shape and strides, or there are none.
    let error = unsafe { Described::of::<f32>(&tensor, DLDataType::F32) }.expect_err("refused");
    (error.kind(), error.to_string())
}

#[test]
fn a_description_that_cannot_be_is_refused() {
    let mut lens = [[-2, 3], [i64::MAX, 4], [1 << 62, 1]];
    let [negative, many, large] = lens.each_mut().map(|lens| lens.as_mut_ptr());
    let refusals = [
        (
            refusal(|it| it.dtype = DLDataType::I32),
            "int32, and float32",
        ),
        (refusal(|it| it.ndim = -1), "no tensor has -1 dimensions"),
        (
            refusal(|it| it.shape = null_mut()),
            "2 dimensions and no shape",
        ),
        (
            refusal(|it| it.shape = negative),
            "[-2, 3], with a negative length",
        ),
        (refusal(|it| it.shape = many), "beyond the address space"),
        (
            refusal(|it| it.data = ptr::without_provenance_mut(usize::MAX - 7)),
            "beyond the address space",
        ),
        (
            refusal(|it| it.byte_offset = u64::MAX),
            "beyond the address space",
        ),
        (
            refusal(|it| it.data = null_mut()),
            "24 bytes and no address",
        ),
        (refusal(|it| it.byte_offset = 2), "an alignment of 4 bytes"),
    ];
    for ((kind, text), expected) in refusals {
        assert_eq!(kind, ErrorKind::InvalidValue, "{text}");
        assert!(text.contains(expected), "{text}");
    }
    let (_, text) = refusal(|it| {
        it.shape = large;
        it.strides = null_mut();
    });
    assert!(text.contains("beyond the address space"), "{text}");
}

#[test]
fn strides_must_be_row_major_or_absent() {
    let mut columns = [1, 2];
    let columns = columns.as_mut_ptr();
    let (kind, text) = refusal(|it| it.strides = columns);
    assert_eq!(kind, ErrorKind::NotSupported);
    assert!(text.contains("[2, 3] and the strides [1, 2]"), "{text}");

    let mut fixture = Fixture::new();
    let mut tensor = fixture.description();
    tensor.strides = null_mut();
    tensor.byte_offset = 8;
    // SAFETY: the fixture has the shape.
    let found = unsafe { Described::of::<f32>(&tensor, DLDataType::F32) }.expect("described");
    assert_eq!((found.address, found.len), (0x1008, 6));
}

#[test]
fn tensors_without_elements_or_dimensions_are_described() {
    let mut fixture = Fixture::new();
    fixture.shape = [i64::MAX, 0];
    let mut tensor = fixture.description();
    tensor.data = null_mut();
    // SAFETY: the fixture has shape and strides.
    let found = unsafe { Described::of::<f32>(&tensor, DLDataType::F32) }.expect("described");
    assert_eq!((found.address, found.len), (0, 0));

    let mut tensor = fixture.description();
    (tensor.ndim, tensor.shape, tensor.strides) = (0, null_mut(), null_mut());
    // SAFETY: there are no dimensions.
    let found = unsafe { Described::of::<f32>(&tensor, DLDataType::F32) }.expect("described");
    assert_eq!((found.address, found.len), (0x1000, 1));
}

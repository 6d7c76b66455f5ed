//! Setting the variable before the driver reads it.

use std::fmt;

use crate::base::error::{Error, Result};
use crate::base::report;
use crate::driver::device::Uuid;
use crate::driver::load::start;
use crate::driver::raw;

use super::Visibility;

/// A device by a name that `CUDA_VISIBLE_DEVICES` has for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Selector {
    /// The index of a GPU in the order of `CUDA_DEVICE_ORDER`, without the variable.
    Index(u32),
    /// A GPU by its UUID.
    Gpu(Uuid),
    /// A MIG instance by its UUID. Driver 470 or newer.
    Mig(Uuid),
    /// A MIG instance by its position, as older drivers name it.
    MigOf {
        /// Its GPU.
        gpu: Uuid,
        /// The number of its GPU instance.
        gpu_instance: u32,
        /// The number of its compute instance within that.
        compute_instance: u32,
    },
}

/// As the variable spells it.
impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Index(index) => write!(f, "{index}"),
            Self::Gpu(uuid) => write!(f, "{uuid}"),
            Self::Mig(uuid) => {
                let uuid = uuid.to_string();
                write!(f, "MIG-{}", uuid.trim_start_matches("GPU-"))
            }
            Self::MigOf {
                gpu,
                gpu_instance,
                compute_instance,
            } => write!(f, "MIG-{gpu}/{gpu_instance}/{compute_instance}"),
        }
    }
}

impl Visibility {
    /// Sets `CUDA_VISIBLE_DEVICES` in this process, provided that the driver has not read it yet. An empty list hides
    /// all devices.
    ///
    /// The best place to set it is the environment in which the process starts; this is for programs that choose their
    /// devices themselves. Call it first in `main`. It opens the driver's library to check whether other code has
    /// initialised it, but does not initialise it. Only the library of [`Driver::load`](crate::Driver::load) is
    /// checked.
    ///
    /// # Safety
    ///
    /// While this runs, no other thread may read or write the environment, unless through [`std::env`](mod@std::env).
    /// Many functions of C read it, those that look up host names and local time among them: see
    /// [`std::env::set_var`]. With a single thread it is always sound.
    ///
    /// # Errors
    ///
    /// [`NotPermitted`](crate::ErrorKind::NotPermitted) once a driver was initialised in this process, or an attempt
    /// was made. [`InvalidValue`](crate::ErrorKind::InvalidValue) for a list that the driver would read only in part or
    /// not at all: names of different kinds, a device twice, several MIG instances.
    /// [`Forked`](crate::ErrorKind::Forked) in a fork. On error the variable is unchanged.
    ///
    /// ```
    /// use cuda_mem::Driver;
    /// use cuda_mem::placement::{Selector, Visibility};
    ///
    /// # cuda_sim::use_if_no_driver();
    /// // SAFETY: no other thread has been started yet.
    /// unsafe { Visibility::set(&[Selector::Index(0)]) }?;
    /// assert_eq!(Driver::load()?.device_count()?, 1);
    ///
    /// // SAFETY: as above.
    /// let late = unsafe { Visibility::set(&[]) };
    /// assert!(late.unwrap_err().to_string().contains("before the first use of CUDA"));
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[doc(alias = "CUDA_VISIBLE_DEVICES")]
    pub unsafe fn set(devices: &[Selector]) -> Result<()> {
        let value = spell(devices)?;
        // As in `Driver::load`.
        let _watched = report::watch_forks_for_now();
        let starts = start::lock()?;
        if starts.were_tried {
            return Err(too_late("this crate has initialised the driver"));
        }
        if is_initialised() {
            return Err(too_late(
                "something else in this process has initialised the driver",
            ));
        }
        // SAFETY: the caller vouches for the environment.
        unsafe { std::env::set_var(start::VISIBLE_DEVICES, value) };
        // Until here nobody starts a driver: it would read the old value.
        drop(starts);
        Ok(())
    }
}

fn too_late(why: &str) -> Error {
    Error::not_permitted(format!(
        "{} was not set: {why}, which has read it and does not again; set it in the environment of the \
         process, or before the first use of CUDA",
        start::VISIBLE_DEVICES
    ))
}

/// Whether the usual driver is initialised. If it cannot be opened, it is not.
fn is_initialised() -> bool {
    // SAFETY: the library was accepted as a CUDA driver; not initialised, it refuses and does nothing.
    cuda_driver_sys::load()
        .is_ok_and(|library| unsafe { raw::device::count(library.table()) }.is_ok())
}

/// The value that names exactly these devices.
fn spell(devices: &[Selector]) -> Result<String> {
    for (index, selector) in devices.iter().enumerate() {
        if devices[..index].contains(selector) {
            return Err(Error::invalid(format!(
                "{selector} is in the list twice, and then the driver shows no device at all; name each \
                 one once"
            )));
        }
    }
    let is_index = |selector: &&Selector| matches!(selector, Selector::Index(_));
    let is_instance =
        |selector: &&Selector| matches!(selector, Selector::Mig(_) | Selector::MigOf { .. });
    if devices.len() > 1 && devices.iter().any(|selector| is_instance(&selector)) {
        return Err(Error::invalid(
            "a process sees one MIG instance, and no GPU beside it; name a single one".to_owned(),
        ));
    }
    let indexes = devices.iter().filter(is_index).count();
    if indexes != 0 && indexes != devices.len() {
        return Err(Error::invalid(format!(
            "{indexes} of {} devices are named by their index and the others by their UUID, and the driver \
             would end the list between them; name all in the same way",
            devices.len()
        )));
    }
    // Such a number ends the list (R149).
    let is_negative = |selector: &&Selector| matches!(selector, Selector::Index(index) if i32::try_from(*index).is_err());
    if let Some(selector) = devices.iter().find(is_negative) {
        return Err(Error::invalid(format!(
            "the driver reads {selector} as a negative number and ends the list there; the largest index is {}",
            i32::MAX
        )));
    }
    let items: Vec<String> = devices.iter().map(Selector::to_string).collect();
    Ok(items.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::error::ErrorKind;

    #[test]
    fn selectors_are_spelled_as_the_variable_wants_them() {
        let uuid = Uuid(*b"\x9e\x8d\x35\xe3cuda-mem\0\0\0\x01");
        let text = "9e8d35e3-6375-6461-2d6d-656d00000001";
        let spelled = |devices: &[Selector]| spell(devices).expect("a good list");
        assert_eq!(spelled(&[]), "");
        assert_eq!(spelled(&[Selector::Index(2), Selector::Index(0)]), "2,0");
        assert_eq!(spelled(&[Selector::Gpu(uuid)]), format!("GPU-{text}"));
        assert_eq!(spelled(&[Selector::Mig(uuid)]), format!("MIG-{text}"));
        let instance = Selector::MigOf {
            gpu: uuid,
            gpu_instance: 3,
            compute_instance: 0,
        };
        assert_eq!(spelled(&[instance]), format!("MIG-GPU-{text}/3/0"));
    }

    #[test]
    fn a_list_that_the_driver_would_cut_is_refused() {
        let (one, other) = (Uuid([1; 16]), Uuid([2; 16]));
        for (list, why) in [
            (vec![Selector::Index(1), Selector::Index(1)], "twice"),
            (
                vec![Selector::Index(0), Selector::Index(1 << 31)],
                "negative",
            ),
            (vec![Selector::Index(1), Selector::Gpu(one)], "same way"),
            (vec![Selector::Gpu(one), Selector::Index(1)], "same way"),
            (vec![Selector::Gpu(one), Selector::Mig(one)], "single"),
            (vec![Selector::Mig(one), Selector::Mig(other)], "single"),
        ] {
            let error = spell(&list).expect_err("a bad list");
            assert_eq!(error.kind(), ErrorKind::InvalidValue, "{list:?}");
            assert!(error.to_string().contains(why), "{error}");
        }
    }
}

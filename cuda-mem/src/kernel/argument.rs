//! Arguments of a kernel launch.

use std::ffi::c_void;

use bytemuck::Pod;
use cuda_driver_sys::CUdeviceptr;

use crate::base::error::{Error, Result};
use crate::mapped::host::{HostMemory, InFlightBuffer};
use crate::mapped::managed::ManagedBuffer;
use crate::memory::buffer::{DeviceBuffer, Loan, ReadLoan};
use crate::placement::PlacedBuffer;
use crate::stream::Stream;

/// One argument of a launch: a number, a [`Value`], or a buffer, whose address the kernel gets. `&mut` is for buffers
/// that the kernel writes to, `&` for those that it only reads. A buffer of another stream is lent to the launch stream
/// for the launch, as by [`DeviceBuffer::on`] and [`DeviceBuffer::read_on`]. Launches on several streams that read one
/// buffer therefore run one after the other, unless it is lent to all of them first: a loan is also an argument. Host
/// memory is an argument while it is [on loan](crate::mapped::InFlightBuffer) to the launch stream.
///
/// This trait is sealed.
pub trait Argument<'a>: sealed::Hold<'a> {}

/// The arguments of a launch: a tuple of up to twelve [`Argument`]s, `()` for none.
pub trait Arguments<'a>: sealed::HoldAll<'a> {}

#[allow(
    unreachable_pub,
    reason = "named by public traits, and older compilers do not see that"
)]
pub(super) mod sealed {
    use super::*;

    /// Makes an argument ready for a stream, and keeps it so.
    pub trait Hold<'a> {
        type Held: Place + 'a;

        fn hold(self, stream: &'a Stream) -> Result<Self::Held>;
    }

    /// Where a value is that the kernel gets, and its bytes.
    pub(crate) type Spot = (*mut c_void, usize);

    pub trait Place {
        fn place(&mut self) -> Spot;
    }

    pub trait HoldAll<'a> {
        /// Calls `launch` while all arguments are ready, with one place for each.
        fn with(
            self,
            stream: &'a Stream,
            launch: &mut dyn FnMut(&[Spot]) -> Result<()>,
        ) -> Result<()>;
    }
}

use sealed::{Hold, HoldAll, Place, Spot};

/// A structure that is passed to a kernel by value; its layout must match the kernel's (`#[repr(C)]`).
///
/// ```
/// use bytemuck::{Pod, Zeroable};
/// use cuda_mem::kernel::Value;
///
/// #[derive(Clone, Copy, Pod, Zeroable)]
/// #[repr(C)]
/// struct Shape {
///     width: u32,
///     height: u32,
/// }
///
/// let shape = Value(Shape { width: 640, height: 480 });
/// # assert_eq!(shape.0.width * shape.0.height, 307_200);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Value<T: Pod>(pub T);

fn place_of<T>(value: &mut T) -> Spot {
    (std::ptr::from_mut(value).cast(), size_of::<T>())
}

impl<T: Pod> Place for Value<T> {
    fn place(&mut self) -> Spot {
        place_of(&mut self.0)
    }
}

impl<'a, T: Pod> Hold<'a> for Value<T> {
    type Held = Self;

    fn hold(self, _: &'a Stream) -> Result<Self> {
        Ok(self)
    }
}

impl<'a, T: Pod> Argument<'a> for Value<T> {}

macro_rules! numbers {
    ($($number:ty)*) => {$(
        impl<'a> Hold<'a> for $number {
            type Held = Value<Self>;

            fn hold(self, _: &'a Stream) -> Result<Value<Self>> {
                Ok(Value(self))
            }
        }

        impl<'a> Argument<'a> for $number {}
    )*};
}

numbers! { u8 i8 u16 i16 u32 i32 u64 i64 f32 f64 }

/// A buffer that is lent, and its address at a place of its own.
#[derive(Debug)]
pub struct Borrowed<G> {
    /// Ends after the launch.
    _loan: G,
    address: CUdeviceptr,
}

impl<G> Place for Borrowed<G> {
    fn place(&mut self) -> Spot {
        place_of(&mut self.address)
    }
}

impl<'a, T: Pod> Hold<'a> for &'a mut DeviceBuffer<T> {
    type Held = Borrowed<Loan<'a, T>>;

    fn hold(self, stream: &'a Stream) -> Result<Self::Held> {
        let loan = self.on(stream)?;
        Ok(Borrowed {
            address: loan.as_raw(),
            _loan: loan,
        })
    }
}

impl<'a, T: Pod> Argument<'a> for &'a mut DeviceBuffer<T> {}

impl<'a, T: Pod> Hold<'a> for &'a DeviceBuffer<T> {
    type Held = Borrowed<ReadLoan<'a, T>>;

    fn hold(self, stream: &'a Stream) -> Result<Self::Held> {
        let loan = self.read_on(stream)?;
        Ok(Borrowed {
            address: loan.as_raw(),
            _loan: loan,
        })
    }
}

impl<'a, T: Pod> Argument<'a> for &'a DeviceBuffer<T> {}

impl<'a, T: Pod> Hold<'a> for &'a mut ManagedBuffer<T> {
    type Held = Borrowed<Loan<'a, T>>;

    fn hold(self, stream: &'a Stream) -> Result<Self::Held> {
        self.inner().hold(stream)
    }
}

impl<'a, T: Pod> Argument<'a> for &'a mut ManagedBuffer<T> {}

impl<'a, T: Pod> Hold<'a> for &'a ManagedBuffer<T> {
    type Held = Borrowed<ReadLoan<'a, T>>;

    fn hold(self, stream: &'a Stream) -> Result<Self::Held> {
        let buffer: &DeviceBuffer<T> = self;
        buffer.hold(stream)
    }
}

impl<'a, T: Pod> Argument<'a> for &'a ManagedBuffer<T> {}

impl<'a, T: Pod> Hold<'a> for &'a mut PlacedBuffer<T> {
    type Held = Borrowed<Loan<'a, T>>;

    fn hold(self, stream: &'a Stream) -> Result<Self::Held> {
        self.inner().hold(stream)
    }
}

impl<'a, T: Pod> Argument<'a> for &'a mut PlacedBuffer<T> {}

impl<'a, T: Pod> Hold<'a> for &'a PlacedBuffer<T> {
    type Held = Borrowed<ReadLoan<'a, T>>;

    fn hold(self, stream: &'a Stream) -> Result<Self::Held> {
        let buffer: &DeviceBuffer<T> = self;
        buffer.hold(stream)
    }
}

impl<'a, T: Pod> Argument<'a> for &'a PlacedBuffer<T> {}

/// The address of what is on loan to the stream of the launch already.
fn on_loan(address: CUdeviceptr, to: &Stream, stream: &Stream) -> Result<Value<CUdeviceptr>> {
    if to == stream {
        return Ok(Value(address));
    }
    Err(Error::invalid(format!(
        "the memory is on loan to {to}, and the launch is on {stream}; lend it to that one, or pass the buffer \
         itself if it is a device's"
    )))
}

impl<'a, T: Pod> Hold<'a> for &'a mut Loan<'_, T> {
    type Held = Value<CUdeviceptr>;

    fn hold(self, stream: &'a Stream) -> Result<Self::Held> {
        on_loan(self.as_raw(), self.stream(), stream)
    }
}

impl<'a, T: Pod> Argument<'a> for &'a mut Loan<'_, T> {}

impl<'a, T: Pod> Hold<'a> for &'a ReadLoan<'_, T> {
    type Held = Value<CUdeviceptr>;

    fn hold(self, stream: &'a Stream) -> Result<Self::Held> {
        on_loan(self.as_raw(), self.stream(), stream)
    }
}

impl<'a, T: Pod> Argument<'a> for &'a ReadLoan<'_, T> {}

impl<'a, H: HostMemory> Hold<'a> for &'a mut InFlightBuffer<H> {
    type Held = Value<CUdeviceptr>;

    fn hold(self, stream: &'a Stream) -> Result<Self::Held> {
        self.require_writable()?;
        on_loan(self.as_raw(), self.stream(), stream)
    }
}

impl<'a, H: HostMemory> Argument<'a> for &'a mut InFlightBuffer<H> {}

impl<'a, H: HostMemory> Hold<'a> for &'a InFlightBuffer<H> {
    type Held = Value<CUdeviceptr>;

    fn hold(self, stream: &'a Stream) -> Result<Self::Held> {
        on_loan(self.as_raw(), self.stream(), stream)
    }
}

impl<'a, H: HostMemory> Argument<'a> for &'a InFlightBuffer<H> {}

macro_rules! tuples {
    ($($name:ident)*) => {
        impl<'a, $($name: Argument<'a>),*> HoldAll<'a> for ($($name,)*) {
            #[allow(non_snake_case, reason = "one name for the type and the value of each element")]
            fn with(
                self,
                #[allow(unused_variables, reason = "of no element")] stream: &'a Stream,
                launch: &mut dyn FnMut(&[Spot]) -> Result<()>,
            ) -> Result<()> {
                let ($($name,)*) = self;
                $(let mut $name = $name.hold(stream)?;)*
                launch(&[$($name.place()),*])
            }
        }

        impl<'a, $($name: Argument<'a>),*> Arguments<'a> for ($($name,)*) {}
    };
}

tuples!();
tuples!(A);
tuples!(A B);
tuples!(A B C);
tuples!(A B C D);
tuples!(A B C D E);
tuples!(A B C D E F);
tuples!(A B C D E F G);
tuples!(A B C D E F G H);
tuples!(A B C D E F G H I);
tuples!(A B C D E F G H I J);
tuples!(A B C D E F G H I J K);
tuples!(A B C D E F G H I J K L);

//! Arguments of a kernel launch.

use std::ffi::c_void;

use bytemuck::Pod;
use cuda_driver_sys::CUdeviceptr;

use crate::base::error::Result;
use crate::mapped::host::{HostMemory, InFlightBuffer};
use crate::memory::slice::{DeviceMemory, DeviceMemoryMut, DeviceSlice, DeviceSliceMut, OnStream};
use crate::stream::Stream;

/// One argument of a launch: a number, a [`Value`], or memory, whose address the kernel gets. `&mut` is for memory that
/// the kernel writes to, `&` for memory that it only reads: a buffer of any kind, a
/// [slice](crate::memory::DeviceSliceMut), or host memory that is [in flight](crate::mapped::InFlightBuffer).
///
/// Memory of another stream is bound to the launch stream for the launch, as by [`on`](crate::DeviceBuffer::on) and
/// [`read_on`](crate::DeviceBuffer::read_on). Launches on several streams that read one buffer therefore run one after
/// the other, unless it is bound to all of them first: `buffer.read_on(&other)?` is also an argument.
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

/// Memory that is bound to the stream of the launch, and its address at a place of its own.
#[derive(Debug)]
pub struct Borrowed<B> {
    /// Dropped after the launch.
    _slice: B,
    address: CUdeviceptr,
}

impl<B> Place for Borrowed<B> {
    fn place(&mut self) -> Spot {
        place_of(&mut self.address)
    }
}

impl<B> Borrowed<B> {
    fn new(address: CUdeviceptr, slice: B) -> Self {
        Self {
            address,
            _slice: slice,
        }
    }
}

impl<'a, M: DeviceMemoryMut> Hold<'a> for &'a mut M {
    type Held = Borrowed<DeviceSliceMut<'a, M::Element, OnStream<'a>>>;

    fn hold(self, stream: &'a Stream) -> Result<Self::Held> {
        let slice = self.as_mut_slice().on(stream)?;
        Ok(Borrowed::new(slice.as_raw(), slice))
    }
}

impl<'a, M: DeviceMemoryMut> Argument<'a> for &'a mut M {}

impl<'a, M: DeviceMemory> Hold<'a> for &'a M {
    type Held = Borrowed<DeviceSlice<'a, M::Element, OnStream<'a>>>;

    fn hold(self, stream: &'a Stream) -> Result<Self::Held> {
        let slice = self.as_slice().read_on(stream)?;
        Ok(Borrowed::new(slice.as_raw(), slice))
    }
}

impl<'a, M: DeviceMemory> Argument<'a> for &'a M {}

impl<'a, H: HostMemory> Hold<'a> for &'a mut InFlightBuffer<H> {
    type Held = Borrowed<DeviceSliceMut<'a, H::Element, OnStream<'a>>>;

    fn hold(self, stream: &'a Stream) -> Result<Self::Held> {
        let slice = self.as_mut_slice()?.on(stream)?;
        Ok(Borrowed::new(slice.as_raw(), slice))
    }
}

impl<'a, H: HostMemory> Argument<'a> for &'a mut InFlightBuffer<H> {}

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

//! Tables of the functions of a library whose list is short enough to be written by hand.

use std::ffi::CStr;

/// Writes a table of functions, each an `Option`, and how it is filled: the table's name, that of the
/// list of its symbols, what says what their signatures are, and then a line for each function.
macro_rules! functions {
    (
        table $table:ident, symbols $symbols:ident, header $header:literal;
        $($(#[$docs:meta])* $name:ident, $pfn:ident: ($($argument:ty),*) $(-> $answer:ty)?;)*
    ) => {
        $(
            #[doc = concat!("The type of `", stringify!($name), "`.")]
            pub type $pfn = unsafe extern "C" fn($($argument),*) $(-> $answer)?;
        )*

        /// The functions of one library, by their real symbols. `None` is a function that it lacks,
        /// because it is older or newer than these bindings.
        #[derive(Clone, Copy, Default)]
        pub struct $table {
            $($(#[$docs])* pub $name: Option<$pfn>,)*
        }

        /// The symbols that these bindings look up.
        pub const $symbols: &[&::std::ffi::CStr] = &[
            $($crate::functions::symbol(concat!(stringify!($name), "\0")),)*
        ];

        impl $table {
            /// Asks `resolve` for the address of every symbol; a null address leaves the field
            /// `None`.
            ///
            /// # Safety
            ///
            #[doc = concat!(
                "Each address must be null or that of a function with the signature that ", $header,
                " gives the symbol, and must stay valid as long as the table or a copy is used."
            )]
            pub unsafe fn fill(
                mut resolve: impl FnMut(&'static ::std::ffi::CStr) -> *const ::std::ffi::c_void,
            ) -> Self {
                use ::std::ffi::c_void;

                Self {
                    $($name: {
                        let symbol = concat!(stringify!($name), "\0");
                        let address = resolve($crate::functions::symbol(symbol));
                        // SAFETY: null is `None`; else the caller vouches for the signature.
                        unsafe { ::std::mem::transmute::<*const c_void, Option<$pfn>>(address) }
                    },)*
                }
            }

            #[doc = concat!("How many of [`", stringify!($symbols), "`] the library exports.")]
            #[must_use]
            pub fn count(&self) -> usize {
                [$(self.$name.is_some(),)*].into_iter().filter(|has| *has).count()
            }
        }

        impl ::std::fmt::Debug for $table {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                let (count, all) = (self.count(), $symbols.len());
                write!(f, "{}({count} of {all} functions)", stringify!($table))
            }
        }
    };
}

/// The text as a symbol. Runs at compile time only, where a failure is a failure to build.
pub(crate) const fn symbol(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(symbol) => symbol,
        Err(_) => c"",
    }
}

pub(crate) use functions;

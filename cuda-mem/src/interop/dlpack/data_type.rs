//! Types of elements.

#![forbid(unsafe_code)]

use std::fmt;

use bytemuck::Pod;

use crate::base::error::{Error, Result};

/// What the bits of an element mean.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DLDataTypeCode(pub u8);

impl DLDataTypeCode {
    /// A signed integer.
    #[doc(alias = "kDLInt")]
    pub const INT: Self = Self(0);
    /// An unsigned integer.
    #[doc(alias = "kDLUInt")]
    pub const UINT: Self = Self(1);
    /// An IEEE floating-point number.
    #[doc(alias = "kDLFloat")]
    pub const FLOAT: Self = Self(2);
    /// A bfloat16.
    #[doc(alias = "kDLBfloat")]
    pub const BFLOAT: Self = Self(4);
    /// A complex number of two floating-point numbers; `bits` counts both.
    #[doc(alias = "kDLComplex")]
    pub const COMPLEX: Self = Self(5);
    /// A truth value; 0 is false.
    #[doc(alias = "kDLBool")]
    pub const BOOL: Self = Self(6);
}

/// The type of a tensor's elements.
///
/// ```
/// use cuda_mem::interop::dlpack::{DLDataType, DLDataTypeCode};
///
/// assert_eq!(DLDataType::F32.to_string(), "float32");
/// assert_eq!(DLDataType::F32.typestr()?, "<f4");
/// // What has no name here is written out: an 8-bit floating-point number of kind e4m3fn.
/// let float8 = DLDataType::new(DLDataTypeCode(10), 8, 1);
/// assert_eq!(float8.size(), Some(1));
/// # Ok::<(), cuda_mem::Error>(())
/// ```
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DLDataType {
    /// What the bits mean.
    pub code: DLDataTypeCode,
    /// Bits of one lane.
    pub bits: u8,
    /// Lanes of one element; 1 unless it is a vector.
    pub lanes: u16,
}

const _: () = {
    assert!(size_of::<DLDataType>() == 4 && align_of::<DLDataType>() == 2);
    assert!(std::mem::offset_of!(DLDataType, bits) == 1);
    assert!(std::mem::offset_of!(DLDataType, lanes) == 2);
};

macro_rules! named {
    ($($name:ident $code:ident $bits:literal $doc:literal)*) => {
        $(#[doc = $doc] pub const $name: Self = Self::new(DLDataTypeCode::$code, $bits, 1);)*
    };
}

impl DLDataType {
    named! {
        U8 UINT 8 "`u8`."
        U16 UINT 16 "`u16`."
        U32 UINT 32 "`u32`."
        U64 UINT 64 "`u64`."
        I8 INT 8 "`i8`."
        I16 INT 16 "`i16`."
        I32 INT 32 "`i32`."
        I64 INT 64 "`i64`."
        F16 FLOAT 16 "An IEEE number of 16 bits."
        F32 FLOAT 32 "`f32`."
        F64 FLOAT 64 "`f64`."
        BF16 BFLOAT 16 "A bfloat16."
        COMPLEX64 COMPLEX 64 "A complex number of two `f32`."
        COMPLEX128 COMPLEX 128 "A complex number of two `f64`."
        BOOL BOOL 8 "A truth value in a byte. `bool` is no `Pod`, so its elements are `u8`."
    }

    /// Any type.
    #[must_use]
    pub const fn new(code: DLDataTypeCode, bits: u8, lanes: u16) -> Self {
        Self { code, bits, lanes }
    }

    /// Bytes of an element; `None` if it is not a whole number of bytes, or none.
    #[must_use]
    pub const fn size(self) -> Option<usize> {
        let bits = self.bits as usize * self.lanes as usize;
        if bits == 0 || !bits.is_multiple_of(8) {
            return None;
        }
        Some(bits / 8)
    }

    /// `Ok` if an element is as large as a `T`.
    pub(super) fn require_size_of<T>(self) -> Result<()> {
        if self.size() == Some(size_of::<T>()) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "an element of {self} has {} bits, and a {} has {} bytes; take elements of the same size",
            u32::from(self.bits) * u32::from(self.lanes),
            std::any::type_name::<T>(),
            size_of::<T>()
        )))
    }

    /// The name of the type in `typestr` of the array interface, such as `<f4`, or `|u1` for a single byte.
    ///
    /// # Errors
    ///
    /// [`NotSupported`](crate::ErrorKind::NotSupported) for a type that has no such name: bfloat16, floating-point
    /// numbers of 8 bits or less, vectors.
    pub fn typestr(self) -> Result<String> {
        let kind = match self.code {
            DLDataTypeCode::BOOL => Some('b'),
            DLDataTypeCode::INT => Some('i'),
            DLDataTypeCode::UINT => Some('u'),
            DLDataTypeCode::FLOAT if self.bits >= 16 => Some('f'),
            DLDataTypeCode::COMPLEX => Some('c'),
            _ => None,
        };
        let size = self.size().filter(|_| self.lanes == 1);
        match (kind, size) {
            (Some(kind), Some(1)) => Ok(format!("|{kind}1")),
            (Some(kind), Some(size)) => Ok(format!("{NATIVE}{kind}{size}")),
            _ => Err(Error::not_supported(format!(
                "the array interface has no name for elements of {self}; exchange them by DLPack"
            ))),
        }
    }

    /// The type with this name in the array interface.
    ///
    /// # Errors
    ///
    /// [`NotSupported`](crate::ErrorKind::NotSupported) for a name of another kind, and for elements in the other byte
    /// order.
    ///
    /// ```
    /// use cuda_mem::interop::dlpack::DLDataType;
    ///
    /// assert_eq!(DLDataType::from_typestr("|u1")?, DLDataType::U8);
    /// assert!(DLDataType::from_typestr(">f4").is_err());
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    pub fn from_typestr(typestr: &str) -> Result<Self> {
        Self::parse(typestr).ok_or_else(|| {
            Error::not_supported(format!(
                "elements of `{typestr}` are not understood; there are b, i, u, f and c of up to 16 bytes in the \
                 machine's byte order, such as `{NATIVE}f4`"
            ))
        })
    }

    fn parse(typestr: &str) -> Option<Self> {
        let mut letters = typestr.chars();
        let order = letters.next()?;
        let code = match letters.next()? {
            'b' => DLDataTypeCode::BOOL,
            'i' => DLDataTypeCode::INT,
            'u' => DLDataTypeCode::UINT,
            'f' => DLDataTypeCode::FLOAT,
            'c' => DLDataTypeCode::COMPLEX,
            _ => return None,
        };
        let digits = letters.as_str();
        // `parse` would take a sign.
        let size: u8 = match digits.bytes().all(|digit| digit.is_ascii_digit()) {
            true => digits.parse().ok()?,
            false => return None,
        };
        let is_fine = match size {
            1 => true,
            _ => order == NATIVE || order == '=',
        };
        let exists = match code {
            DLDataTypeCode::BOOL => size == 1,
            DLDataTypeCode::FLOAT => matches!(size, 2 | 4 | 8),
            DLDataTypeCode::COMPLEX => matches!(size, 4 | 8 | 16),
            _ => matches!(size, 1 | 2 | 4 | 8),
        };
        (is_fine && exists && "<>|=".contains(order)).then(|| Self::new(code, size * 8, 1))
    }
}

/// How the array interface writes the byte order of this machine.
const NATIVE: char = if cfg!(target_endian = "little") {
    '<'
} else {
    '>'
};

/// Kind and bits, such as `float32`, with the lanes of a vector.
impl fmt::Display for DLDataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { code, bits, lanes } = *self;
        match code {
            DLDataTypeCode::INT => write!(f, "int{bits}"),
            DLDataTypeCode::UINT => write!(f, "uint{bits}"),
            DLDataTypeCode::FLOAT => write!(f, "float{bits}"),
            DLDataTypeCode::BFLOAT => write!(f, "bfloat{bits}"),
            DLDataTypeCode::COMPLEX => write!(f, "complex{bits}"),
            DLDataTypeCode::BOOL => write!(f, "bool{bits}"),
            DLDataTypeCode(other) => write!(f, "type {other} of {bits} bits"),
        }?;
        if lanes != 1 {
            write!(f, " x {lanes}")?;
        }
        Ok(())
    }
}

/// Elements whose type has a name, so that it need not be given.
///
/// Implement it for types of your own, or give the [`DLDataType`] where a tensor is made.
///
/// ```
/// use cuda_mem::interop::dlpack::{DLDataType, TensorElement};
///
/// #[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
/// #[repr(transparent)]
/// struct Half(u16);
///
/// impl TensorElement for Half {
///     const DATA_TYPE: DLDataType = DLDataType::F16;
/// }
/// ```
pub trait TensorElement: Pod + Send + Sync {
    /// The type. Its size must be that of the element, or no tensor is made.
    const DATA_TYPE: DLDataType;
}

macro_rules! elements {
    ($($element:ty: $name:ident)*) => {
        $(impl TensorElement for $element {
            const DATA_TYPE: DLDataType = DLDataType::$name;
        })*
    };
}

elements! {
    u8: U8 u16: U16 u32: U32 u64: U64
    i8: I8 i16: I16 i32: I32 i64: I64
    f32: F32 f64: F64
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMED: [(DLDataType, &str); 14] = [
        (DLDataType::U8, "|u1"),
        (DLDataType::U16, "<u2"),
        (DLDataType::U32, "<u4"),
        (DLDataType::U64, "<u8"),
        (DLDataType::I8, "|i1"),
        (DLDataType::I16, "<i2"),
        (DLDataType::I32, "<i4"),
        (DLDataType::I64, "<i8"),
        (DLDataType::F16, "<f2"),
        (DLDataType::F32, "<f4"),
        (DLDataType::F64, "<f8"),
        (DLDataType::COMPLEX64, "<c8"),
        (DLDataType::COMPLEX128, "<c16"),
        (DLDataType::BOOL, "|b1"),
    ];

    #[test]
    #[cfg(target_endian = "little")]
    fn names_of_types_lead_there_and_back() {
        for (data_type, name) in NAMED {
            assert_eq!(data_type.typestr().ok().as_deref(), Some(name));
            assert_eq!(DLDataType::from_typestr(name).ok(), Some(data_type));
        }
        assert_eq!(DLDataType::from_typestr("=f4").ok(), Some(DLDataType::F32));
        assert_eq!(DLDataType::from_typestr("<u1").ok(), Some(DLDataType::U8));
    }

    #[test]
    fn what_has_no_name_is_refused_both_ways() {
        let four = DLDataType::new(DLDataTypeCode::FLOAT, 32, 4);
        let tiny = DLDataType::new(DLDataTypeCode::FLOAT, 8, 1);
        let bits = DLDataType::new(DLDataTypeCode::UINT, 4, 1);
        for data_type in [DLDataType::BF16, four, tiny, bits] {
            let error = data_type.typestr().expect_err("refused");
            assert!(error.to_string().contains("DLPack"), "{error}");
        }
        let wrong = [
            "", "<", "<f", ">f4", "|f4", "<f3", "<f1", "<f16", "<b2", "<V2", "<f+4", "<f4 ", "f4",
            "?f4", "xu1", "<i16", "<c2", "<u999", "<U4",
        ];
        for name in wrong {
            let error = DLDataType::from_typestr(name).expect_err("refused");
            assert!(error.to_string().contains(name), "{error}");
        }
    }

    #[test]
    fn sizes_are_whole_bytes() {
        assert_eq!(DLDataType::COMPLEX128.size(), Some(16));
        assert_eq!(DLDataType::new(DLDataTypeCode(17), 4, 2).size(), Some(1));
        assert_eq!(DLDataType::new(DLDataTypeCode(17), 4, 1).size(), None);
        assert_eq!(DLDataType::new(DLDataTypeCode::INT, 0, 1).size(), None);
        assert_eq!(DLDataType::new(DLDataTypeCode::INT, 8, 0).size(), None);
        let most = DLDataType::new(DLDataTypeCode::INT, 248, u16::MAX);
        assert_eq!(most.size(), Some(31 * 65_535));
        assert!(DLDataType::BF16.require_size_of::<u16>().is_ok());
        let error = DLDataType::BF16
            .require_size_of::<f32>()
            .expect_err("refused");
        let text = error.to_string();
        assert!(
            text.contains("bfloat16 has 16 bits, and a f32 has 4 bytes"),
            "{text}"
        );
        assert!(DLDataType::U8.require_size_of::<[u8; 0]>().is_err());
    }

    #[test]
    fn elements_have_the_size_of_their_types() {
        fn fits<T: TensorElement>() -> bool {
            T::DATA_TYPE.require_size_of::<T>().is_ok()
        }
        assert!(fits::<u8>() && fits::<u16>() && fits::<u32>() && fits::<u64>());
        assert!(fits::<i8>() && fits::<i16>() && fits::<i32>() && fits::<i64>());
        assert!(fits::<f32>() && fits::<f64>());
    }

    #[test]
    fn types_are_written_as_people_do() {
        let text = |data_type: DLDataType| data_type.to_string();
        assert_eq!(text(DLDataType::BF16), "bfloat16");
        assert_eq!(text(DLDataType::BOOL), "bool8");
        assert_eq!(
            text(DLDataType::new(DLDataTypeCode::FLOAT, 32, 4)),
            "float32 x 4"
        );
        assert_eq!(
            text(DLDataType::new(DLDataTypeCode(99), 6, 1)),
            "type 99 of 6 bits"
        );
    }
}

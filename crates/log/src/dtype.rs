//! Element types of arrays, with the names NumPy gives them. The numbers are part of the record format.

use std::fmt;

use smallvec::SmallVec;

/// Extents or coordinates, in C order (the last one varies fastest). Up to four stay off the heap.
pub type Dims = SmallVec<[u64; 4]>;

macro_rules! dtypes {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal, $bytes:literal;)*) => {
        /// The type of an array's elements.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Dtype { $($(#[$doc])* $name = $code,)* }

        impl Dtype {
            /// All element types.
            pub const ALL: &'static [Dtype] = &[$(Dtype::$name,)*];

            /// Bytes of one element.
            pub const fn size(self) -> usize {
                match self { $(Dtype::$name => $bytes,)* }
            }

            /// NumPy's name of it (`bfloat16` and `str` are ours).
            pub const fn name(self) -> &'static str {
                match self { $(Dtype::$name => $text,)* }
            }

            /// The type with this number in a record.
            pub fn from_code(code: u8) -> Option<Dtype> {
                match code { $($code => Some(Dtype::$name),)* _ => None }
            }
        }
    };
}

dtypes! {
    /// One byte, 0 or 1.
    Bool = 1, "bool", 1;
    /// Signed, 8 bits.
    I8 = 2, "int8", 1;
    /// Signed, 16 bits.
    I16 = 3, "int16", 2;
    /// Signed, 32 bits.
    I32 = 4, "int32", 4;
    /// Signed, 64 bits.
    I64 = 5, "int64", 8;
    /// Unsigned, 8 bits; also plain bytes.
    U8 = 6, "uint8", 1;
    /// Unsigned, 16 bits.
    U16 = 7, "uint16", 2;
    /// Unsigned, 32 bits.
    U32 = 8, "uint32", 4;
    /// Unsigned, 64 bits.
    U64 = 9, "uint64", 8;
    /// IEEE half precision.
    F16 = 10, "float16", 2;
    /// The upper half of an IEEE single.
    BF16 = 11, "bfloat16", 2;
    /// IEEE single precision.
    F32 = 12, "float32", 4;
    /// IEEE double precision.
    F64 = 13, "float64", 8;
    /// Two singles.
    C64 = 14, "complex64", 8;
    /// Two doubles.
    C128 = 15, "complex128", 16;
    /// UTF-8 text; one element is one byte.
    Str = 16, "str", 1;
}

impl Dtype {
    /// The type with this name.
    pub fn parse(name: &str) -> Option<Dtype> {
        Dtype::ALL.iter().copied().find(|d| d.name() == name)
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_round_trip() {
        for d in Dtype::ALL {
            assert_eq!(Dtype::parse(d.name()), Some(*d));
            assert_eq!(Dtype::from_code(*d as u8), Some(*d));
            assert!(d.size().is_power_of_two());
        }
        assert_eq!(Dtype::from_code(0), None);
        assert_eq!(Dtype::parse("float65"), None);
    }
}

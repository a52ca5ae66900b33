//! Rust types that are elements of arrays.

use forebay_log::Dtype;

/// A plain number that can be put and got as it is.
pub trait Element: bytemuck::Pod {
    /// Its element type.
    const DTYPE: Dtype;
}

macro_rules! elements {
    ($($ty:ty = $dtype:ident),* $(,)?) => {
        $(impl Element for $ty { const DTYPE: Dtype = Dtype::$dtype; })*
    };
}

elements!(
    i8 = I8,
    i16 = I16,
    i32 = I32,
    i64 = I64,
    u8 = U8,
    u16 = U16,
    u32 = U32,
    u64 = U64,
    f32 = F32,
    f64 = F64
);

//! The Rust program of README.md, word for word: three steps of an array written and read again.

use forebay_space::{OpenOptions, Reader, Result, Writer};

fn main() -> Result<()> {
    let mut writer = Writer::open("heat", &OpenOptions::default())?;
    for value in [1.0, 2.0, 3.0] {
        writer.begin_step()?;
        writer.put_array("T", &[4, 8], &[0, 0], &[4, 8], &[value; 32])?;
        writer.end_step()?;
    }
    writer.close()?;

    let mut reader = Reader::open("heat", &OpenOptions::default())?;
    let mut means = Vec::new();
    while reader.begin_step(None)?.is_some() {
        means.push(reader.get_array::<f64>("T", None)?.iter().sum::<f64>() / 32.0);
        reader.end_step()?;
    }
    println!("{} steps, mean {:.1}", means.len(), means.iter().sum::<f64>() / means.len() as f64);
    reader.close()
}

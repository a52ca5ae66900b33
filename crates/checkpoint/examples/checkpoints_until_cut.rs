//! Saves step after step until the power goes, and says of each when it is acknowledged; begun again, it first restores
//! the newest. For `cargo xtask dax-machine --cuts`.
//!
//! usage: checkpoints_until_cut DIRECTORY ACKNOWLEDGED
//!
//! ACKNOWLEDGED is the last step that an earlier run said, or `none`. Prints `back STEP` or `back none`, then
//! `step N` once step N is durable. Ends with status 1 when an older step than the acknowledged one comes back, or
//! bytes of another one.

use forebay_checkpoint::{Checkpoint, Dtype, Durability, NdBox, Options, Result};
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

/// Elements of the state: several checksums.
const ELEMENTS: u64 = 40_000;

fn content(step: u64) -> Vec<u8> {
    (0..ELEMENTS)
        .flat_map(|i| ((step + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (i << 20)).to_le_bytes())
        .collect()
}

fn go(path: &Path, acknowledged: Option<u64>) -> Result<String> {
    let mut state = vec![0u8; ELEMENTS as usize * 8];
    let mut checkpoint = Checkpoint::open(path, &Options::default())?;
    if checkpoint.durability(0) != Durability::Power {
        return Ok(format!("the level promises no more than to survive {:?}", checkpoint.durability(0)));
    }
    checkpoint.protect("u", Dtype::U64, &[ELEMENTS], &NdBox::whole(&[ELEMENTS]))?;
    let restored = checkpoint.restore_latest(&mut [&mut state])?.map(|restored| restored.step);
    println!("back {}", restored.map_or("none".into(), |step| step.to_string()));
    if restored < acknowledged {
        return Ok(format!("step {restored:?} came back, acknowledged was {acknowledged:?}"));
    }
    if restored.is_some_and(|step| state != content(step)) {
        return Ok(format!("step {restored:?} came back with other bytes"));
    }
    for step in restored.map_or(0, |step| step + 1).. {
        state = content(step);
        checkpoint.save(step, &[&state])?;
        checkpoint.wait()?;
        println!("step {step}");
        let _ = std::io::stdout().flush();
    }
    Ok("there are no more steps".into())
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [path, acknowledged] = words.as_slice() else {
        eprintln!("usage: checkpoints_until_cut DIRECTORY ACKNOWLEDGED");
        return ExitCode::from(2);
    };
    match go(Path::new(path), acknowledged.parse().ok()) {
        Ok(wrong) => println!("wrong {wrong}"),
        Err(e) => println!("wrong {e}"),
    }
    ExitCode::FAILURE
}

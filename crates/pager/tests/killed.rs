//! An array whose process is killed while its tiles are written behind: the file holds whole tiles, none of them older
//! than what was flushed.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use forebay_pager::{Array, ArrayOptions, FileBacking, Mode, Pool, PoolOptions};

const TILE: usize = 4096;
const TILES: u64 = 64;

/// Tells a child of the test its engine, and its file.
const ENGINE: &str = "FOREBAY_TEST_KILLED_ENGINE";
const FILE: &str = "FOREBAY_TEST_KILLED_FILE";

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).or_else(|_| tempfile::tempdir()).unwrap()
}

/// Runs the test `child` of this program again.
fn start(engine: &str, path: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--nocapture", "--test-threads=1"]);
    command.env(ENGINE, engine).env(FILE, path).stdin(Stdio::null()).stdout(Stdio::piped());
    command.spawn().unwrap()
}

#[test]
fn who_is_killed_leaves_whole_tiles_none_older_than_the_flush() {
    // Where io_uring is refused both are threads.
    for engine in ["ring", "threads"] {
        for rounds in [2, 4, 10] {
            let dir = folder();
            let path = dir.path().join("data");
            std::fs::write(&path, vec![0; TILES as usize * TILE]).unwrap();
            let mut writer = start(engine, &path);
            let mut flushed = 0;
            for line in BufReader::new(writer.stdout.take().unwrap()).lines() {
                let line = line.unwrap();
                let Some(round) = line.strip_prefix("flushed ") else { continue };
                flushed = round.parse().unwrap();
                if flushed >= rounds {
                    break;
                }
            }
            writer.kill().unwrap();
            writer.wait().unwrap();
            assert!(flushed >= rounds, "{engine}: the writer ended by itself");
            for (number, tile) in std::fs::read(&path).unwrap().chunks(TILE).enumerate() {
                let words: Vec<u64> =
                    tile.chunks(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect();
                assert!(words.iter().all(|word| *word == words[0]), "{engine}: tile {number} is torn");
                assert!(words[0] >= flushed, "{engine}: tile {number} has {}, not {flushed}", words[0]);
            }
        }
    }
}

/// Not a test by itself: what the children do. A quarter of the tiles fits the budget.
#[test]
fn child() {
    let Ok(engine) = std::env::var(ENGINE) else { return };
    let path = PathBuf::from(std::env::var(FILE).unwrap());
    let budget = TILES / 4 * TILE as u64;
    let pool = Pool::new(PoolOptions { budget, tile_max: TILE, ring: Some(engine == "ring") }).unwrap();
    let backing = FileBacking::open(&path, true).unwrap();
    let options = ArrayOptions { mode: Mode::ReadWrite, ..ArrayOptions::new(TILE) };
    let array = Array::open(&pool, Arc::new(backing), &options).unwrap();
    for round in 1u64.. {
        for tile in 0..TILES {
            array.pin_mut(tile).unwrap().values::<u64>().unwrap().fill(round);
        }
        if round % 2 == 0 {
            array.flush().unwrap();
            println!("flushed {round}");
        }
    }
}

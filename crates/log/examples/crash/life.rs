//! One incarnation of producers that lives on a simulated device: random operations from a seed, each noted in the
//! model with its step, so that a crash inside any of them can be judged.

use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::Arc;

use forebay_log::reclaim::retire;
use forebay_log::recover::take_over;
use forebay_log::{recover, Dtype, Error, Kind, Lane, LaneOwner, Piece, Recovered, Reserved};
use forebay_tier::adapter::sim::{Died, Sim};
use forebay_tier::Device;

use crate::model::{Attempt, Life, Model, Put, Step, NEVER};
use crate::pool::{Pool, Source};
use crate::workload::{Random, Workload};

type Result<T> = std::result::Result<T, Error>;

struct Rank {
    lane: Lane,
    /// Pieces that the open version still gets.
    left: u64,
    /// A reservation that waits to be filled.
    reserved: Option<(Reserved, Arc<Put>)>,
}

/// Producers at work.
pub struct Group<'a> {
    workload: &'a Workload,
    sim: Arc<Sim>,
    pool: Pool,
    ranks: Vec<Rank>,
    random: Random,
    step: Step,
    serial: u64,
    found: Recovered,
    pub model: Model,
}

impl<'a> Group<'a> {
    /// Looks at what is on `sim`; nothing is written yet.
    pub fn start(workload: &'a Workload, sim: Arc<Sim>, model: &Model, seed: u64) -> Group<'a> {
        let step = 1 + model.operations.keys().next_back().copied().unwrap_or(0);
        let superblock = model.superblock.clone();
        sim.act(step as u32, step);
        let found = recover(&*sim, &superblock).expect("the simulator reads without errors");
        let number = found.incarnations.last().map_or(0, |last| last.number) + 1;
        let mut before = model.clone();
        before.lives.retain(|life| life.number < number);
        before.lives.push(Life::new(number, workload.ranks, found.complete));
        before.operations.insert(step, "recover");
        let device: Arc<dyn Device> = sim.clone();
        let rank = |rank: usize| Rank {
            lane: workload.batch.into_iter().fold(
                Lane::new(
                    device.clone(),
                    owner(&superblock, rank, number, &found, workload),
                    superblock.horizon,
                    true,
                ),
                Lane::in_batches,
            ),
            left: 0,
            reserved: None,
        };
        let ranks = (0..workload.ranks).map(rank).collect();
        let first = workload.granules as usize;
        let pool = Pool::new(device.clone(), superblock, first, &found, workload.ranks);
        let random = Random::new(seed);
        Group { workload, sim, pool, ranks, random, step, serial: 0, found, model: before }
    }

    /// Makes certain what was found. Only then the incarnation counts.
    fn take_over(&mut self) -> Result<()> {
        let number = self.life().number;
        let (superblock, ranks) = (&self.model.superblock, self.ranks.len() as u32);
        take_over(&*self.sim, superblock, &self.found, number, ranks, self.found.complete)?;
        self.model.take_over(&self.found, self.step);
        let stale: Vec<u64> = self.found.stale.iter().map(|stale| stale.df.offset_bytes).collect();
        for offset in stale {
            self.begin_step(0, "wipe copies");
            retire(&*self.sim, offset, self.model.superblock.horizon)?;
        }
        Ok(())
    }

    fn life(&mut self) -> &mut Life {
        self.model.lives.last_mut().expect("pushed at the start")
    }

    /// The next operation, by `rank`.
    fn begin_step(&mut self, rank: usize, operation: &'static str) -> Step {
        self.step += 1;
        self.model.operations.insert(self.step, operation);
        let number = self.life().number;
        self.sim.act((number << 16) + rank as u32 + 1, self.step);
        self.step
    }

    /// The next operation, by the mover of `rank`: a thread of its own.
    fn begin_move(&mut self, rank: usize, operation: &'static str) {
        self.begin_step(rank, operation);
        let number = self.life().number;
        self.sim.act((number << 16) + (self.ranks.len() + rank) as u32 + 1, self.step);
    }

    /// Works through the life. True when it came to its end by itself, false when its process was killed or its
    /// device failed.
    pub fn run(&mut self) -> bool {
        let worked = catch_unwind(AssertUnwindSafe(|| self.take_over().and_then(|()| self.work())));
        let ended = match worked {
            Ok(Ok(())) => true,
            Ok(Err(e)) => {
                assert!(e.kind() == Kind::Poisoned, "an operation failed: {e}");
                self.check_poisoned();
                false
            }
            Err(panic) if panic.is::<Died>() => false,
            Err(panic) => resume_unwind(panic),
        };
        // Nothing runs any more: what returned so far is certain, what the crash interrupted is not.
        self.step += u64::from(ended);
        self.sim.act(self.step as u32, self.step);
        self.sim.crash_now();
        ended
    }

    /// A device whose flush failed takes nothing more.
    fn check_poisoned(&mut self) {
        if self.pool.has_lower() {
            // The first pool, where lanes are written, goes on.
            return;
        }
        let version = self.ranks[0].lane.open_version();
        if version.is_none() {
            self.ranks[0].lane.begin(u64::MAX >> 1);
        }
        let piece = Piece { name: "late", dtype: Dtype::U8, shape: &[1], start: &[0], count: &[1] };
        let late = self.ranks[0].lane.append(&mut Source { pool: &mut self.pool, rank: 0 }, &piece, &[1]);
        let kind = late.expect_err("the pool is poisoned").kind();
        // A segment may be refused before the device is asked.
        assert!(matches!(kind, Kind::Poisoned | Kind::QuotaFull), "{kind}");
    }

    fn work(&mut self) -> Result<()> {
        for _ in 0..self.workload.operations {
            self.trouble();
            let rank = self.random.below(self.ranks.len() as u64) as usize;
            self.advance(rank)?;
        }
        for rank in 0..self.ranks.len() {
            if self.ranks[rank].lane.open_version().is_some() {
                self.abort(rank);
            }
            if self.random.chance(self.workload.finishes) {
                self.finish(rank)?;
            }
        }
        Ok(())
    }

    /// What the workload wants to go wrong.
    fn trouble(&mut self) {
        const EIO: i32 = 5;
        if self.workload.kills && self.random.below(self.workload.operations) < 2 {
            let n = self.random.below(4);
            self.sim.die_at_fence(n);
        }
        if self.workload.flushes_fail && self.random.below(self.workload.operations) < 2 {
            self.sim.inject_flush_failure(EIO);
        }
        if self.workload.refuses && self.pool.refuses_in.is_none() {
            self.pool.refuses_in = Some(self.random.below(6));
        }
    }

    /// One operation of a rank, the next that makes sense.
    fn advance(&mut self, rank: usize) -> Result<()> {
        if self.random.chance(5) {
            return self.release(rank);
        }
        if self.random.chance(self.workload.moves) {
            return self.relocate(rank);
        }
        if self.ranks[rank].lane.open_version().is_none() {
            return self.begin(rank);
        }
        if self.random.chance(self.workload.aborts) {
            self.abort(rank);
            return Ok(());
        }
        if self.ranks[rank].reserved.is_some() {
            return self.fill(rank);
        }
        if self.ranks[rank].left > 0 {
            return self.put(rank);
        }
        self.commit(rank)
    }

    /// What the rank's mover does: a segment goes to another place, or old places are freed.
    fn relocate(&mut self, rank: usize) -> Result<()> {
        let committed = self.life().committed(rank);
        let lower = self.pool.has_lower();
        let down = lower && self.random.chance(60);
        self.begin_move(rank, if down { "move down" } else { "move" });
        self.pool.relocate(rank, committed, down)?;
        if lower && self.random.chance(20) {
            self.begin_move(rank, "adopt");
            self.pool.adopt();
        }
        // A reader may use the old place for a while: until then it is there twice.
        if self.random.chance(50) {
            self.begin_move(rank, "leave");
            self.pool.leave()?;
        }
        Ok(())
    }

    /// Opens the rank's next version, unless it is too far ahead of the others.
    fn begin(&mut self, rank: usize) -> Result<()> {
        let life = self.life();
        let (version, slowest) = (life.committed(rank), life.complete());
        if version > slowest + self.workload.ahead {
            return Ok(());
        }
        self.life().attempts[rank].push(Attempt {
            version,
            puts: Vec::new(),
            commit_began: NEVER,
            committed: NEVER,
            aborted: NEVER,
        });
        self.ranks[rank].lane.begin(version);
        self.ranks[rank].left = self.random.below(self.workload.pieces_max) + 1;
        Ok(())
    }

    fn attempt(&mut self, rank: usize) -> &mut Attempt {
        self.life().attempts[rank].last_mut().expect("a version is open")
    }

    fn abort(&mut self, rank: usize) {
        let step = self.begin_step(rank, "abort");
        self.ranks[rank].reserved = None;
        self.ranks[rank].lane.abort(&mut Source { pool: &mut self.pool, rank });
        self.attempt(rank).aborted = step;
    }

    /// A piece that is unlike every other.
    fn new_put(&mut self, rank: usize) -> Put {
        const NAMES: [&str; 3] =
            ["t", "pressure", "a/variable/with/a/name/that/needs/more/than/one/line/of/its/own"];
        self.serial += 1;
        let dims = self.random.below(4) as usize;
        let (least, most) = self.workload.payload_bytes;
        let count = least + self.random.below(most - least + 1);
        // The last dimension carries the size.
        let mut extents = vec![1; dims];
        if let Some(last) = extents.last_mut() {
            *last = count;
        }
        let bytes = extents.iter().product::<u64>() as usize;
        let mut random = Random::new(self.serial << 20 | rank as u64 | u64::from(self.life().number) << 50);
        Put {
            name: NAMES[self.random.below(3) as usize].to_string(),
            dtype: Dtype::U8,
            shape: extents.iter().map(|e| e * 2).collect(),
            start: vec![0; dims],
            count: extents,
            payload: (0..bytes).map(|_| random.next() as u8).collect(),
        }
    }

    fn put(&mut self, rank: usize) -> Result<()> {
        let put = Arc::new(self.new_put(rank));
        let step = self.begin_step(rank, "put");
        let reserves = self.random.chance(self.workload.reserves);
        let mut source = Source { pool: &mut self.pool, rank };
        let lane = &mut self.ranks[rank].lane;
        let done = if reserves {
            lane.reserve(&mut source, &piece(&put)).map(Some)
        } else {
            lane.append(&mut source, &piece(&put), &put.payload).map(|()| None)
        };
        match done {
            Err(e) => self.out_of_space(rank, e),
            Ok(None) => {
                self.attempt(rank).puts.push((step, put));
                self.ranks[rank].left -= 1;
                Ok(())
            }
            Ok(Some(reserved)) => {
                self.ranks[rank].reserved = Some((reserved, put));
                Ok(())
            }
        }
    }

    /// A version that does not fit is given up; the readers then let everything go.
    fn out_of_space(&mut self, rank: usize, e: Error) -> Result<()> {
        if !matches!(e.kind(), Kind::QuotaFull | Kind::TierFull) {
            return Err(e);
        }
        self.abort(rank);
        let complete = self.life().complete();
        self.raise_floor(complete);
        Ok(())
    }

    fn fill(&mut self, rank: usize) -> Result<()> {
        let (mut reserved, put) = self.ranks[rank].reserved.take().expect("looked before");
        let step = self.begin_step(rank, "fill");
        reserved.as_mut_slice().copy_from_slice(&put.payload);
        self.ranks[rank].lane.fill(reserved)?;
        self.attempt(rank).puts.push((step, put));
        self.ranks[rank].left -= 1;
        Ok(())
    }

    fn commit(&mut self, rank: usize) -> Result<()> {
        let step = self.begin_step(rank, "commit");
        let sealed = match self.ranks[rank].lane.seal(&mut Source { pool: &mut self.pool, rank }) {
            Ok(sealed) => sealed,
            Err(e) => return self.out_of_space(rank, e),
        };
        let attempts = &mut self.model.lives.last_mut().expect("pushed at the start").attempts[rank];
        let attempt = attempts.last_mut().expect("a version is open");
        attempt.commit_began = step;
        let flushed = sealed.flush()?;
        flushed.commit()?;
        attempt.committed = step;
        Ok(())
    }

    fn finish(&mut self, rank: usize) -> Result<()> {
        let step = self.begin_step(rank, "finish");
        // A lane without a segment ends without a record.
        if !self.pool.has_segments(rank) {
            return Ok(());
        }
        let life = self.life();
        let next = life.committed(rank);
        life.finished[rank].0 = step;
        match self.ranks[rank].lane.finish(&mut Source { pool: &mut self.pool, rank }, next) {
            Ok(()) => self.life().finished[rank].1 = step,
            Err(e) if matches!(e.kind(), Kind::QuotaFull | Kind::TierFull) => {}
            Err(e) => return Err(e),
        }
        Ok(())
    }

    /// Readers pass some versions; the lane releases what no reader needs.
    fn release(&mut self, rank: usize) -> Result<()> {
        let complete = self.life().complete();
        let keeps = self.random.below(self.workload.keeps + 1);
        self.raise_floor(complete.saturating_sub(keeps));
        self.begin_step(rank, "reclaim");
        self.pool.reclaim(rank)?;
        if self.random.chance(30) {
            self.begin_step(rank, "retire orphans");
            self.pool.reclaim_orphans()?;
        }
        Ok(())
    }

    fn raise_floor(&mut self, floor: u64) {
        if floor > self.pool.floor {
            self.pool.floor = floor;
            self.model.floors.push((self.step + 1, floor));
        }
    }
}

fn piece(put: &Put) -> Piece<'_> {
    Piece { name: &put.name, dtype: put.dtype, shape: &put.shape, start: &put.start, count: &put.count }
}

fn owner(
    superblock: &forebay_log::Superblock,
    rank: usize,
    number: u32,
    found: &Recovered,
    workload: &Workload,
) -> LaneOwner {
    LaneOwner {
        uuid: superblock.uuid,
        rank: rank as u32,
        incarnation: number,
        group_size: workload.ranks as u32,
        base_version: found.complete,
    }
}

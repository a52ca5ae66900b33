//! The station: a tier that is shared by closed groups of ranks, as one fluid.
//!
//! Each rank of a group (class c of n_c ranks) thinks for z_c seconds per object (software, compute in between, skew
//! against the others) and then moves o_c bytes. Being inside takes L_c alone, and φ times as long together:
//!
//! ```text
//! L_c = (latency + o_c / (b1 f1(o_c))) λ ρ(m_c + r m_o) / ρ(m_c)
//!                                              b1: rate of one thread; λ: penalty of a remote access at low load
//! T_c = L_c + (φ - 1) ((1 - t) L_c + t o_c l)  inside together; l: mean of all L / o; t: how far bytes take turns
//! X_c = min(n_c / (z_c + T_c), g_c / T_c)      objects per second; g_c: most ranks that the gate lets in
//! m_c = X_c T_c                                ranks inside (Little's law)
//! C_c = C(m_c + c m_o) f(o_c) / ρ(m_c + r m_o) capacity over ranks inside, size of objects, penalty of remote
//!                                              accesses; m_o: ranks inside that go the other way, which count as
//!                                              c and r of one
//! M   = Σ m_c (ω if remote)                    what disturbs; readers that poll count too
//! H   = (M/μ)^q / (1 + (M/μ)^q)
//! κ   = 1 + k H (4 w (1 - w))^p                w: share of the writers among those inside
//! κ1  = 1 + a (κ - 1)                          what of it each access feels by itself: L_c is κ1 times as long
//! U   = κ Σ X_c o_c / C_c                      use
//! φ   = (1 - U^s)^(-1/s)                       one unknown, bracketed by 1 and infinity
//! ```
//!
//! An access that is remote for a share r of its bytes has the mean penalty `1 + r (penalty - 1)`.
//!
//! Limits that hold (as far as the smoothing s allows, which takes at most a factor 2^(1/s)): one rank gets b1; without
//! thinking n ranks get the smaller of n b1 and C(n); with long thinking n / z.
//! Guarantees: pure, no allocation, and the number of steps is bounded.

use super::table::Table;

/// Most steps towards φ; some six are the rule.
const STEPS: usize = 60;
/// Rounds towards what accesses feel of others that they hold up.
const ROUNDS: usize = 4;
/// How exactly φ is found.
const EXACT: f64 = 1e-10;

/// How far remote accesses fall behind local ones.
#[derive(Clone, Debug, PartialEq)]
pub enum Penalty {
    /// As measured: the remote rate as a share of the local one, over ranks inside. Rates lie on straight lines between
    /// what was measured; their ratios, where they fall steeply, do not.
    Share(Table),
    /// From `low` to `high`, half of it at `middle` ranks inside: `low + (high - low) H(m; middle, steepness)`.
    Rising {
        /// At low load.
        low: f64,
        /// At high load.
        high: f64,
        /// Ranks inside at which half of the rise is done.
        middle: f64,
        /// Exponent.
        steepness: i32,
    },
}

/// What a tier does in one direction.
#[derive(Clone, Debug, PartialEq)]
pub struct Way {
    /// Bytes per second of one thread.
    pub single: f64,
    /// Seconds that an access takes beside its bytes.
    pub latency_s: f64,
    /// Bytes per second that it gives at most, over ranks inside.
    pub capacity: Table,
    /// f: factor of the capacity over bytes of an object.
    pub size: Table,
    /// f1: factor of the rate of one thread over them.
    pub size_single: Table,
    /// Remote against local.
    pub remote: Penalty,
}

/// How much those who go the other way count, each from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Together {
    /// c: as ranks inside over which the capacity is known.
    pub capacity: f64,
    /// r: as ranks inside over which the remote penalty is known; each access feels it by itself.
    pub remote: f64,
    /// t: 0 where all accesses take longer by the same factor, 1 where bytes take turns, so that a fast one
    /// waits as long as a slow one.
    pub turns: f64,
}

/// How readers and writers disturb each other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mix {
    /// k: the capacity falls to 1 / (1 + k) of itself at worst.
    pub strength: f64,
    /// The same where all accesses are remote.
    pub strength_remote: f64,
    /// μ: ranks inside at which half of it is reached.
    pub middle: f64,
    /// q: how steeply.
    pub steepness: i32,
    /// p: how much worst the even mixture is against others.
    pub evenness: f64,
    /// ω: what a remote rank counts.
    pub remote_weight: f64,
    /// a: how much of the disturbance each access feels by itself, 0 to 1, also where the tier is not busy.
    pub alone: f64,
}

impl Mix {
    /// No interference beyond sharing the time.
    pub const NONE: Mix = Mix {
        strength: 0.0,
        strength_remote: 0.0,
        middle: 1.0,
        steepness: 1,
        evenness: 1.0,
        remote_weight: 1.0,
        alone: 0.0,
    };
}

/// A tier as its ranks see it.
#[derive(Clone, Debug, PartialEq)]
pub struct Station {
    /// Reading.
    pub read: Way,
    /// Writing.
    pub write: Way,
    /// Both at once.
    pub mix: Mix,
    /// How much either counts for the other.
    pub together: Together,
    /// s: how sharply the rate of threads bends into the capacity.
    pub sharpness: i32,
}

/// A group of ranks that do the same.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Class {
    /// Whether they read.
    pub reads: bool,
    /// n: how many.
    pub ranks: f64,
    /// z: seconds per object outside.
    pub think_s: f64,
    /// o: bytes of an object.
    pub bytes: f64,
    /// Share of the accesses that are remote, 0 to 1.
    pub remote: f64,
    /// g: most ranks inside at a time; infinite without a gate.
    pub gate: f64,
}

/// Readers that wait and look again and again whether there is something.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Polling {
    /// Ranks inside because of it.
    pub inside: f64,
    /// Share that is remote.
    pub remote: f64,
}

/// What one group gets.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Share {
    /// Objects per second of all its ranks.
    pub objects_per_s: f64,
    /// Ranks inside.
    pub inside: f64,
    /// Seconds that one object takes inside.
    pub inside_s: f64,
    /// Its part of the use of the tier, before the disturbance.
    pub used: f64,
}

/// How a station is used.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Solution {
    /// Writers.
    pub write: Share,
    /// Readers.
    pub read: Share,
    /// φ: how much longer everything takes inside.
    pub stretch: f64,
    /// κ: by how much the mixture lowers the capacity.
    pub disturbance: f64,
}

fn hill(x: f64, middle: f64, steepness: i32) -> f64 {
    let r = (x / middle).powi(steepness);
    if r.is_finite() {
        r / (1.0 + r)
    } else {
        1.0
    }
}

impl Penalty {
    /// Remote and local are the same.
    pub fn none() -> Penalty {
        Penalty::Share(Table::flat(1.0))
    }

    /// With so many ranks inside.
    pub fn at(&self, inside: f64) -> f64 {
        match self {
            Penalty::Share(table) => 1.0 / table.at(inside),
            Penalty::Rising { low, high, middle, steepness } => {
                low + (high - low) * hill(inside, *middle, *steepness)
            }
        }
    }

    /// With one rank inside or fewer.
    pub fn low(&self) -> f64 {
        match self {
            Penalty::Share(table) => 1.0 / table.at(0.0),
            Penalty::Rising { low, .. } => *low,
        }
    }

    /// Half of the error bar with so many ranks inside, as a share.
    pub fn error_at(&self, inside: f64) -> f64 {
        match self {
            Penalty::Share(table) => table.error_at(inside),
            Penalty::Rising { .. } => 0.0,
        }
    }
}

impl Way {
    /// Seconds that an object takes with no other rank inside.
    pub fn alone_s(&self, bytes: f64, remote: f64) -> f64 {
        let rate = self.single * self.size_single.at(bytes);
        (self.latency_s + bytes / rate) * (1.0 + remote * (self.remote.low() - 1.0))
    }
}

/// What of a group does not change with φ.
struct Group<'a> {
    class: Class,
    way: &'a Way,
    alone_s: f64,
    size_factor: f64,
}

impl<'a> Group<'a> {
    fn new(station: &'a Station, class: &Class) -> Group<'a> {
        let way = if class.reads { &station.read } else { &station.write };
        let alone_s = way.alone_s(class.bytes, class.remote);
        Group { class: *class, way, alone_s, size_factor: way.size.at(class.bytes) }
    }

    /// The most ranks that may be inside.
    fn places(&self) -> f64 {
        self.class.ranks.min(self.class.gate)
    }

    /// How much worse a remote access is because so many go the other way.
    fn worse(&self, own: f64, others: f64, together: &Together) -> f64 {
        if self.class.remote <= 0.0 || together.remote <= 0.0 {
            return 1.0;
        }
        let penalty = |inside: f64| 1.0 + self.class.remote * (self.way.remote.at(inside) - 1.0);
        (penalty(own + together.remote * others) / penalty(own)).max(1.0)
    }

    /// All but its use of the tier, with `alone_s` of each access; each of its bytes waits for `byte_s` where bytes
    /// take turns, and `stretch` is φ κ1.
    fn share(&self, alone_s: f64, byte_s: f64, stretch: f64, turns: f64) -> Share {
        let waits_s = (1.0 - turns) * alone_s + turns * self.class.bytes * byte_s;
        let inside_s = alone_s + (stretch - 1.0) * waits_s;
        let open = self.class.ranks / (self.class.think_s + inside_s);
        let objects_per_s = open.min(self.class.gate / inside_s);
        Share { objects_per_s, inside: objects_per_s * inside_s, inside_s, used: 0.0 }
    }

    /// Its use of the tier, of which it has a share, while so many ranks inside go the other way.
    fn used(&self, share: &Share, others: f64, together: &Together) -> f64 {
        let remote = self.class.remote;
        let penalty = match remote > 0.0 {
            true => 1.0 + remote * (self.way.remote.at(share.inside + together.remote * others) - 1.0),
            false => 1.0,
        };
        let capacity = self.way.capacity.at(share.inside + together.capacity * others);
        share.objects_per_s * self.class.bytes * penalty / (capacity * self.size_factor)
    }
}

impl Station {
    /// How the ranks of up to one group each of writers and readers use it, while others poll.
    pub fn solve(&self, write: Option<&Class>, read: Option<&Class>, polling: Polling) -> Solution {
        let write = write.filter(|c| c.ranks > 0.0).map(|c| Group::new(self, c));
        let read = read.filter(|c| c.ranks > 0.0).map(|c| Group::new(self, c));
        let places = |group: &Option<Group>| group.as_ref().map_or(0.0, Group::places);
        let both = write.is_some() && read.is_some();
        let at = |stretch: f64| {
            let remote = |group: &Option<Group>| group.as_ref().map_or(0.0, |g| g.class.remote);
            let slowed = |by: f64, inside: (f64, f64)| {
                let alone = |group: &Option<Group>, own: f64, others: f64| {
                    group.as_ref().map_or(0.0, |g| g.alone_s * g.worse(own, others, &self.together))
                };
                let alone_s = (alone(&write, inside.0, inside.1), alone(&read, inside.1, inside.0));
                let all = places(&write) + places(&read);
                let per_byte = |group: &Option<Group>, alone_s: f64| {
                    group.as_ref().map_or(0.0, |g| g.places() * alone_s / g.class.bytes)
                };
                let mean_byte_s = (per_byte(&write, alone_s.0) + per_byte(&read, alone_s.1)) / all;
                let of = |group: &Option<Group>, alone_s: f64| {
                    let share = |g: &Group| g.share(alone_s, mean_byte_s, stretch * by, self.together.turns);
                    group.as_ref().map_or(Share::default(), share)
                };
                let (mut w, mut r) = (of(&write, alone_s.0), of(&read, alone_s.1));
                let used = |group: &Option<Group>, own: &Share, other: &Share| {
                    group.as_ref().map_or(0.0, |g| g.used(own, other.inside, &self.together))
                };
                (w.used, r.used) = (used(&write, &w, &r), used(&read, &r, &w));
                let disturbance = self.disturbance(
                    (w.inside, remote(&write)),
                    (r.inside, remote(&read)),
                    (polling.inside, polling.remote),
                );
                Solution { write: w, read: r, stretch, disturbance }
            };
            let mut now = slowed(1.0, (places(&write), places(&read)));
            // Accesses that take longer change who is inside, but not by much.
            let feels = both && (self.mix.alone > 0.0 || self.together.remote > 0.0);
            for _ in 0..if feels { ROUNDS } else { 0 } {
                let by = 1.0 + self.mix.alone * (now.disturbance - 1.0);
                now = slowed(by, (now.write.inside, now.read.inside));
            }
            now
        };
        // y = 1 / φ lies in 0..1; use and φ meet where U^s + y^s = 1. The s-th root of that is nearly straight in y, so
        // that the false position, with its stale end halved (Illinois), needs few steps.
        let root = 1.0 / f64::from(self.sharpness);
        let over = |now: &Solution, y: f64| {
            (now.used().powi(self.sharpness) + y.powi(self.sharpness)).powf(root) - 1.0
        };
        let mut now = at(1.0);
        let (mut low, mut high) = ((0.0, -1.0), (1.0, over(&now, 1.0)));
        let mut side = 0;
        for _ in 0..STEPS {
            let y = (low.0 * high.1 - high.0 * low.1) / (high.1 - low.1);
            now = at(1.0 / y);
            let excess = over(&now, y);
            if excess.abs() < EXACT {
                break;
            }
            if excess > 0.0 {
                high = (y, excess);
                low.1 *= if side == 1 { 0.5 } else { 1.0 };
                side = 1;
            } else {
                low = (y, excess);
                high.1 *= if side == -1 { 0.5 } else { 1.0 };
                side = -1;
            }
        }
        now
    }

    /// κ, from the ranks inside and the remote share of writers, readers and those that poll.
    fn disturbance(&self, write: (f64, f64), read: (f64, f64), polling: (f64, f64)) -> f64 {
        let mix = &self.mix;
        let reading = read.0 + polling.0;
        let all = write.0 + reading;
        if write.0 <= 0.0 || reading <= 0.0 || mix.strength + mix.strength_remote <= 0.0 {
            return 1.0;
        }
        let remote = write.0 * write.1 + read.0 * read.1 + polling.0 * polling.1;
        let strength = mix.strength + (mix.strength_remote - mix.strength) * remote / all;
        let disturbing = all + (mix.remote_weight - 1.0) * remote;
        let writers = write.0 / all;
        let even = (4.0 * writers * (1.0 - writers)).powf(mix.evenness);
        1.0 + strength * hill(disturbing, mix.middle, mix.steepness) * even
    }
}

impl Solution {
    /// U: how much of the tier is used, the disturbance counted.
    pub fn used(&self) -> f64 {
        self.disturbance * (self.write.used + self.read.used)
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::Row;
    use super::*;
    use fastrand::Rng;

    const SHARPNESS: i32 = 4;

    fn way(single: f64, most: f64, random: &mut Rng) -> Way {
        // Capacity that falls beyond some ranks, as that of writes does.
        let row = |x: f64, y: f64| Row { x, y, error: 0.0 };
        let fall = 0.4 + 0.6 * random.f64();
        Way {
            single,
            latency_s: 0.0,
            capacity: Table::new(vec![row(4.0, most), row(32.0, most * fall)]),
            size: Table::flat(1.0),
            size_single: Table::flat(1.0),
            remote: Penalty::Rising {
                low: 1.0 + random.f64(),
                high: 2.0 + 3.0 * random.f64(),
                middle: 8.0,
                steepness: 4,
            },
        }
    }

    fn stations() -> impl Iterator<Item = (Station, Rng)> {
        (0..200).map(|seed| {
            let mut random = Rng::with_seed(seed);
            let (read, write) = (1e9 * (1.0 + random.f64()), 1e9 * (1.0 + random.f64()));
            let most = |random: &mut Rng| 1e9 * (6.0 + 30.0 * random.f64());
            let (read_most, write_most) = (most(&mut random), most(&mut random));
            let station = Station {
                read: way(read, read_most, &mut random),
                write: way(write, write_most, &mut random),
                mix: Mix { strength: 2.0 * random.f64(), strength_remote: 2.0, middle: 6.0, ..Mix::NONE },
                together: Together::default(),
                sharpness: SHARPNESS,
            };
            (station, random)
        })
    }

    fn class(reads: bool, ranks: f64, think_s: f64) -> Class {
        Class { reads, ranks, think_s, bytes: 1e6, remote: 0.0, gate: f64::INFINITY }
    }

    fn alone(station: &Station, class: &Class) -> Share {
        match class.reads {
            true => station.solve(None, Some(class), Polling::default()).read,
            false => station.solve(Some(class), None, Polling::default()).write,
        }
    }

    /// What the smoothing may take at most.
    fn smooth() -> f64 {
        2f64.powf(-1.0 / f64::from(SHARPNESS))
    }

    #[test]
    fn one_rank_gets_its_own_rate_and_many_the_capacity() {
        for (station, mut random) in stations() {
            for reads in [true, false] {
                let way = if reads { &station.read } else { &station.write };
                let rate = |ranks: f64, think: f64| {
                    let class = class(reads, ranks, think);
                    alone(&station, &class).objects_per_s * class.bytes
                };
                assert!((rate(1.0, 0.0) / way.single - 1.0).abs() < 0.01);
                let ranks = 1.0 + 31.0 * random.f64();
                let bound = (ranks * way.single).min(way.capacity.at(ranks));
                let got = rate(ranks, 0.0) / bound;
                assert!((smooth() - 1e-6..=1.0 + 1e-6).contains(&got), "{ranks}: {got}");
                // Thinking a thousand times as long as moving: the ranks never meet.
                let think = 1e3 * 1e6 / way.single;
                assert!((rate(ranks, think) / (ranks * 1e6 / think) - 1.0).abs() < 2e-3);
            }
        }
    }

    #[test]
    fn a_rank_that_joins_never_speeds_another_one_up() {
        for (station, mut random) in stations() {
            let (writers, readers) = (1.0 + 23.0 * random.f64(), 1.0 + 23.0 * random.f64());
            let (write, read) = (class(false, writers, 1e-3 * random.f64()), class(true, readers, 0.0));
            let both = station.solve(Some(&write), Some(&read), Polling::default());
            let near = |a: f64, b: f64| a <= b * (1.0 + 1e-6);
            assert!(near(both.write.objects_per_s, alone(&station, &write).objects_per_s));
            assert!(near(both.read.objects_per_s, alone(&station, &read).objects_per_s));
            assert!(both.used() <= 1.0 + 1e-6 && both.stretch >= 1.0 && both.disturbance >= 1.0);
            let far = Class { remote: 1.0, ..write };
            assert!(near(alone(&station, &far).objects_per_s, alone(&station, &write).objects_per_s));
            let half = Class { remote: 0.5, ..write };
            assert!(near(alone(&station, &far).objects_per_s, alone(&station, &half).objects_per_s));
        }
    }

    #[test]
    fn who_goes_the_other_way_counts_as_far_as_it_was_said() {
        for (station, mut random) in stations() {
            let (writers, readers) = (2.0 + 10.0 * random.f64(), 2.0 + 10.0 * random.f64());
            let write = Class { remote: 1.0, ..class(false, writers, 0.0) };
            let read = class(true, readers, 0.0);
            let with = |together: Together| {
                let station = Station { together, ..station.clone() };
                let both = station.solve(Some(&write), Some(&read), Polling::default());
                (both, alone(&station, &write))
            };
            let (apart, lone) = with(Together::default());
            let (counted, still) = with(Together { capacity: 1.0, remote: 1.0, turns: 0.0 });
            assert_eq!(lone, still, "alone there is no other rank to count");
            assert!(counted.write.objects_per_s <= apart.write.objects_per_s * (1.0 + 1e-6));
            let (turns, _) = with(Together { turns: 1.0, ..Together::default() });
            // Beyond what each takes by itself, all wait equally long.
            let (w, r) = (&station.write, &station.read);
            let waits = |share: &Share, alone_s: f64| share.inside_s - alone_s;
            let (w, r) = (waits(&turns.write, w.alone_s(1e6, 1.0)), waits(&turns.read, r.alone_s(1e6, 0.0)));
            assert!((w - r).abs() <= 1e-6 * (w + r) + 1e-12, "{w} {r}");
        }
    }

    #[test]
    fn where_bytes_take_turns_an_object_waits_as_often_as_it_has_bytes() {
        for (station, mut random) in stations() {
            let station =
                Station { together: Together { turns: 1.0, ..Together::default() }, ..station.clone() };
            let times = 2.0 + 30.0 * random.f64();
            let write = class(false, 2.0 + 10.0 * random.f64(), 0.0);
            let read = Class { bytes: times * write.bytes, ..class(true, 2.0 + 10.0 * random.f64(), 0.0) };
            let both = station.solve(Some(&write), Some(&read), Polling::default());
            let waits_s = |share: &Share, way: &Way, bytes: f64| share.inside_s - way.alone_s(bytes, 0.0);
            let (w, r) = (
                waits_s(&both.write, &station.write, write.bytes),
                waits_s(&both.read, &station.read, read.bytes),
            );
            assert!((r - times * w).abs() <= 1e-6 * (r + times * w) + 1e-12, "{times}: {w} {r}");
        }
    }

    #[test]
    fn a_gate_keeps_the_others_out() {
        for (station, mut random) in stations() {
            let ranks = 8.0 + 16.0 * random.f64();
            let gated = Class { gate: 4.0, ..class(false, ranks, 0.0) };
            let share = alone(&station, &gated);
            assert!(share.inside <= 4.0 + 1e-9);
            // No more than four ranks by themselves would do.
            let four = alone(&station, &class(false, 4.0, 0.0));
            assert!((share.objects_per_s / four.objects_per_s - 1.0).abs() < 1e-6);
        }
    }
}

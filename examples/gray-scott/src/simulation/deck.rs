//! The input deck of the simulation: a TOML file, checked whole before anything runs.
//!
//! Guarantees: a [`Deck`] that exists is one that can be computed (positive shape, stable time step, seeds
//! inside the grid, no unknown key). It says nothing about the machine: whether the memory suffices shows
//! later.

use super::noise::Noise;
use super::patterns::{self, PATTERNS};
use super::split::Split;
use forebay_space::{did_you_mean, Dtype, Error, Kind, Result};
use serde::Deserialize;
use std::path::Path;

/// Everything that determines the field, plus how it is cut and how often it is put out.
#[derive(Clone, Debug, PartialEq)]
pub struct Deck {
    /// Cells along z, y, x (C order: x is contiguous).
    pub shape: [usize; 3],
    /// Time steps to compute.
    pub steps: u64,
    /// Every how many steps U and V are put out; version v holds the state after `v * output_every` steps.
    pub output_every: u64,
    /// Name of the pattern that F and k come from; "custom" when the deck gives the numbers.
    pub pattern: String,
    /// Feed rate F.
    pub feed: f64,
    /// Kill rate k.
    pub kill: f64,
    /// Diffusion coefficient of U, cells²/time.
    pub diffusion_u: f64,
    /// Diffusion coefficient of V, cells²/time.
    pub diffusion_v: f64,
    /// Length of a time step.
    pub dt: f64,
    /// Boxes that start with other values than U = 1, V = 0; later ones win.
    pub seeds: Vec<Seed>,
    /// Noise amplitudes and seed.
    pub noise: NoiseSettings,
    /// `F64` or `F32`.
    pub dtype: Dtype,
    /// Parts along z, y, x; `None` = chosen for the number of ranks.
    pub decomposition: Option<[usize; 3]>,
}

/// A box of the grid with initial values of its own.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub struct Seed {
    /// First cell along z, y, x.
    pub start: [usize; 3],
    /// Cells along z, y, x.
    pub count: [usize; 3],
    /// Initial U inside.
    #[serde(default = "seed_u")]
    pub u: f64,
    /// Initial V inside.
    #[serde(default = "seed_v")]
    pub v: f64,
}

/// U and V inside the seed: the values of the field's usual in-situ Gray–Scott example (ADIOS2's and the
/// Gray–Scott tutorials built on it); Pearson himself took 1/2 and 1/4.
const SEED_U: f64 = 0.25;
const SEED_V: f64 = 0.33;
/// Half the edge of the central cube, in cells; the same example's number.
const SEED_HALF_EDGE: usize = 6;

fn seed_u() -> f64 {
    SEED_U
}

fn seed_v() -> f64 {
    SEED_V
}

/// How much noise, and which.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(default)]
pub struct NoiseSettings {
    /// Key of the generator.
    pub seed: u64,
    /// Each initial value is multiplied by 1 + `initial` · r, r in [-1, 1) (Pearson: 0.01).
    pub initial: f64,
    /// `each_step` · r is added to dU/dt in every cell and step.
    pub each_step: f64,
}

impl Default for NoiseSettings {
    fn default() -> Self {
        NoiseSettings { seed: 1, initial: 0.0, each_step: 0.0 }
    }
}

impl NoiseSettings {
    /// The generator.
    pub fn generator(&self) -> Noise {
        Noise::new(self.seed)
    }
}

/// The file as written; every key may be absent.
#[derive(Deserialize)]
struct RawDeck {
    shape: Option<[usize; 3]>,
    steps: Option<u64>,
    output_every: Option<u64>,
    pattern: Option<String>,
    #[serde(rename = "F")]
    feed: Option<f64>,
    k: Option<f64>,
    #[serde(rename = "Du")]
    diffusion_u: Option<f64>,
    #[serde(rename = "Dv")]
    diffusion_v: Option<f64>,
    dt: Option<f64>,
    dtype: Option<String>,
    decomposition: Option<RawDecomposition>,
    seed: Option<Vec<Seed>>,
    #[serde(default)]
    noise: NoiseSettings,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum RawDecomposition {
    Word(String),
    Parts([usize; 3]),
}

/// Keys of the deck and of its tables, for "did you mean".
const KEYS: [&str; 13] = [
    "shape",
    "steps",
    "output_every",
    "pattern",
    "F",
    "k",
    "Du",
    "Dv",
    "dt",
    "dtype",
    "decomposition",
    "seed",
    "noise",
];
const SEED_KEYS: [&str; 4] = ["start", "count", "u", "v"];
const NOISE_KEYS: [&str; 3] = ["seed", "initial", "each_step"];

/// Largest number of time steps: the counter of the noise generator has 32 bits for it.
const STEPS_MAX: u64 = u32::MAX as u64;
/// Most cells along one axis; products of three stay far from overflow.
const CELLS_MAX: usize = 1 << 20;

impl Deck {
    /// Reads and checks a deck. `Kind::UnknownKey` for a key that does not exist, `Kind::Usage` for a value
    /// that makes no sense, `Kind::UnknownComponent` when there is no such file.
    pub fn read(path: &Path) -> Result<Deck> {
        let text = std::fs::read_to_string(path).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => Error::new(Kind::UnknownComponent, "there is no such input deck")
                .with("deck", path.display())
                .hint("examples/gray-scott/deck.toml of the source tree is one to start from"),
            _ => Error::io(format!("cannot read the input deck {}", path.display()), e),
        })?;
        Deck::parse(&text).map_err(|e| e.with("deck", path.display()))
    }

    /// Checks a deck given as text.
    pub fn parse(text: &str) -> Result<Deck> {
        let table: toml::Table = toml::from_str(text).map_err(not_toml)?;
        check_keys("", table.keys(), &KEYS)?;
        if let Some(noise) = table.get("noise").and_then(toml::Value::as_table) {
            check_keys("noise.", noise.keys(), &NOISE_KEYS)?;
        }
        for seed in table.get("seed").and_then(toml::Value::as_array).into_iter().flatten() {
            if let Some(seed) = seed.as_table() {
                check_keys("seed.", seed.keys(), &SEED_KEYS)?;
            }
        }
        // From the text again, not from the table: these errors then point at line and column.
        toml::from_str::<RawDeck>(text).map_err(not_toml)?.check()
    }

    /// Number of versions a run puts out: the initial state and one for every `output_every` steps.
    pub fn outputs(&self) -> u64 {
        self.steps / self.output_every + 1
    }

    /// The cut into boxes for this number of ranks.
    pub fn split(&self, ranks: usize) -> Result<Split> {
        match self.decomposition {
            Some(parts) => Split::new(self.shape, parts, ranks),
            None => Split::auto(self.shape, ranks),
        }
    }

    /// Checks what lies between the values; [`Deck::parse`] calls it, and so must code that changes a deck afterwards.
    pub fn validate(&self) -> Result<()> {
        let usage = |message: &str| Err(Error::new(Kind::Usage, message));
        if self.shape.iter().any(|n| !(3..=CELLS_MAX).contains(n)) {
            return usage("each axis of the shape needs 3 to 1048576 cells");
        }
        if self.output_every == 0 || self.steps > STEPS_MAX {
            return usage("output_every must be at least 1, steps at most 4294967295");
        }
        let rates = [self.feed, self.kill, self.diffusion_u, self.diffusion_v, self.dt];
        if !rates.iter().all(|x| x.is_finite() && *x >= 0.0) || self.dt == 0.0 {
            return usage("F, k, Du and Dv must be finite and not negative, dt positive");
        }
        let amplitudes = [self.noise.initial, self.noise.each_step];
        if !amplitudes.iter().all(|a| (0.0..=1.0).contains(a)) {
            return usage("noise amplitudes lie between 0 and 1");
        }
        self.check_stability()?;
        self.seeds.iter().try_for_each(|seed| self.check_seed(seed))
    }

    /// The explicit Euler step of the 7-point Laplacian is stable up to D·dt = 1/6 (von Neumann: the fastest
    /// mode, a checkerboard, is multiplied by 1 - 12·D·dt).
    fn check_stability(&self) -> Result<()> {
        let fastest = self.diffusion_u.max(self.diffusion_v);
        if fastest * self.dt <= 1.0 / 6.0 {
            return Ok(());
        }
        Err(Error::new(Kind::Usage, "the time step is too long: explicit diffusion would be unstable")
            .with("dt", self.dt)
            .with("D", fastest)
            .hint(format!("dt at most 1/(6 D) = {:.6}, or smaller Du and Dv", 1.0 / (6.0 * fastest))))
    }

    fn check_seed(&self, seed: &Seed) -> Result<()> {
        let inside = (0..3).all(|a| {
            seed.count[a] > 0
                && seed.start[a].checked_add(seed.count[a]).is_some_and(|end| end <= self.shape[a])
        });
        if !inside {
            return Err(Error::new(Kind::BoxOutsideShape, "a seed does not lie inside the grid")
                .with("start", format!("{:?}", seed.start))
                .with("count", format!("{:?}", seed.count))
                .with("shape", format!("{:?}", self.shape)));
        }
        if !(seed.u.is_finite() && seed.v.is_finite()) {
            return Err(Error::new(Kind::Usage, "a seed's u and v must be finite"));
        }
        Ok(())
    }
}

impl RawDeck {
    fn check(self) -> Result<Deck> {
        let (pattern, feed, kill) = rates(self.pattern, self.feed, self.k)?;
        let shape = self.shape.unwrap_or([64; 3]);
        let deck = Deck {
            shape,
            steps: self.steps.unwrap_or(1000),
            output_every: self.output_every.unwrap_or(100),
            pattern,
            feed,
            kill,
            diffusion_u: self.diffusion_u.unwrap_or(DEFAULT_DIFFUSION_U),
            diffusion_v: self.diffusion_v.unwrap_or(DEFAULT_DIFFUSION_V),
            dt: self.dt.unwrap_or(1.0),
            seeds: self.seed.unwrap_or_else(|| vec![central_seed(shape)]),
            noise: self.noise,
            dtype: dtype(self.dtype.as_deref())?,
            decomposition: decomposition(self.decomposition)?,
        };
        deck.validate()?;
        Ok(deck)
    }
}

/// Pearson's Du = 2·10⁻⁵ and Dv = 10⁻⁵ on a mesh of 2.5/256 are 0.21 and 0.105 cells²/time, too much for a
/// step of 1 in three dimensions. Half of it keeps his ratio of 2 and shrinks the pattern by the square root
/// of 2.
const DEFAULT_DIFFUSION_U: f64 = 0.10;
const DEFAULT_DIFFUSION_V: f64 = 0.05;

/// The central cube, smaller where the grid is small.
fn central_seed(shape: [usize; 3]) -> Seed {
    let half = shape.map(|n| SEED_HALF_EDGE.min(n / 4).max(1));
    Seed {
        start: [0, 1, 2].map(|a| shape[a] / 2 - half[a]),
        count: half.map(|h| 2 * h),
        u: SEED_U,
        v: SEED_V,
    }
}

/// F and k: from the pattern's name, or both given.
fn rates(pattern: Option<String>, feed: Option<f64>, kill: Option<f64>) -> Result<(String, f64, f64)> {
    match (pattern, feed, kill) {
        (Some(name), None, None) => match patterns::find(&name) {
            Some(p) => Ok((name, p.feed, p.kill)),
            None => {
                let names = PATTERNS.map(|p| p.name);
                let hint = match did_you_mean(&name, names) {
                    Some(near) => format!("did you mean \"{near}\"?"),
                    None => format!("Pearson's patterns are {}", names.join(", ")),
                };
                Err(Error::new(Kind::Usage, "unknown pattern").with("pattern", name).hint(hint))
            }
        },
        (None, Some(feed), Some(kill)) => Ok(("custom".to_owned(), feed, kill)),
        (Some(_), _, _) => Err(Error::new(Kind::Usage, "give either a pattern or F and k, not both")),
        (None, ..) => Err(Error::new(Kind::Usage, "the deck gives neither a pattern nor both F and k")
            .hint("for example: pattern = \"lambda\"")),
    }
}

fn dtype(name: Option<&str>) -> Result<Dtype> {
    match name.unwrap_or("float64") {
        "float64" | "f64" | "f8" => Ok(Dtype::F64),
        "float32" | "f32" | "f4" => Ok(Dtype::F32),
        other => Err(Error::new(Kind::Usage, "the field is float64 or float32").with("dtype", other)),
    }
}

fn decomposition(raw: Option<RawDecomposition>) -> Result<Option<[usize; 3]>> {
    match raw {
        None => Ok(None),
        Some(RawDecomposition::Word(word)) => parse_decomposition(&word),
        Some(RawDecomposition::Parts(parts)) if parts.contains(&0) => {
            Err(Error::new(Kind::Usage, "every part of the decomposition is at least 1"))
        }
        Some(RawDecomposition::Parts(parts)) => Ok(Some(parts)),
    }
}

/// "auto" or "2x2x1" (parts along z, y, x).
pub fn parse_decomposition(text: &str) -> Result<Option<[usize; 3]>> {
    if text == "auto" {
        return Ok(None);
    }
    let parts: Vec<usize> = text.split('x').map_while(|p| p.parse().ok()).filter(|p| *p > 0).collect();
    match <[usize; 3]>::try_from(parts) {
        Ok(parts) if text.split('x').count() == 3 => Ok(Some(parts)),
        _ => Err(Error::new(Kind::Usage, "a decomposition is \"auto\" or three positive numbers")
            .with("decomposition", text)
            .hint("for example 2x2x1 (parts along z, y, x), in a deck [2, 2, 1]")),
    }
}

fn check_keys<'a>(table: &str, keys: impl Iterator<Item = &'a String>, known: &[&'static str]) -> Result<()> {
    for key in keys {
        if !known.contains(&key.as_str()) {
            let hint = match did_you_mean(key, known.iter().copied()) {
                Some(near) => format!("did you mean {table}{near}?"),
                None => format!("known keys: {}", known.join(", ")),
            };
            return Err(Error::new(Kind::UnknownKey, "the input deck has an unknown key")
                .with("key", format!("{table}{key}"))
                .hint(hint));
        }
    }
    Ok(())
}

fn not_toml(e: toml::de::Error) -> Error {
    Error::new(Kind::Usage, format!("cannot read the input deck: {}", e.to_string().trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_deck_gets_the_defaults() {
        let deck = Deck::parse("pattern = \"lambda\"").unwrap();
        assert_eq!((deck.feed, deck.kill, deck.dtype), (0.026, 0.061, Dtype::F64));
        assert_eq!(deck.seeds, [Seed { start: [26; 3], count: [12; 3], u: 0.25, v: 0.33 }]);
        assert_eq!(deck.outputs(), 11);
        assert_eq!(deck.split(4).unwrap().parts, [4, 1, 1]);
    }

    #[test]
    fn every_key_is_read() {
        let deck = Deck::parse(
            "shape = [8, 9, 10]\nsteps = 7\noutput_every = 2\nF = 0.03\nk = 0.06\nDu = 0.12\nDv = 0.06\n\
             dt = 0.5\ndtype = \"float32\"\ndecomposition = [2, 1, 3]\n[[seed]]\nstart = [1, 2, 3]\n\
             count = [2, 2, 2]\nu = 0.5\n[noise]\nseed = 9\ninitial = 0.01\neach_step = 0.001\n",
        )
        .unwrap();
        assert_eq!(
            (deck.shape, deck.steps, deck.outputs(), deck.pattern.as_str()),
            ([8, 9, 10], 7, 4, "custom")
        );
        assert_eq!((deck.diffusion_u, deck.diffusion_v, deck.dt, deck.dtype), (0.12, 0.06, 0.5, Dtype::F32));
        assert_eq!(deck.seeds, [Seed { start: [1, 2, 3], count: [2; 3], u: 0.5, v: 0.33 }]);
        assert_eq!(deck.noise, NoiseSettings { seed: 9, initial: 0.01, each_step: 0.001 });
        assert_eq!(deck.decomposition, Some([2, 1, 3]));
    }

    #[test]
    fn the_decks_of_the_example_are_read() {
        let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/gray-scott");
        let deck = Deck::read(&example.join("deck.toml")).unwrap();
        assert_eq!((deck.outputs(), deck.seeds.len()), (31, 5));
        assert_eq!(Deck::read(&example.join("deck-small.toml")).unwrap().shape, [24; 3]);
        assert_eq!(Deck::read(&example.join("none.toml")).unwrap_err().kind(), Kind::UnknownComponent);
    }

    #[test]
    fn unknown_keys_are_refused_with_a_guess() {
        for (text, key, guess) in [
            ("patern = \"mu\"", "patern", "pattern"),
            ("pattern = \"mu\"\n[noise]\neachstep = 1.0", "noise.eachstep", "noise.each_step"),
            ("pattern = \"mu\"\n[[seed]]\nstart = [0,0,0]\ncounts = [1,1,1]", "seed.counts", "seed.count"),
        ] {
            let e = Deck::parse(text).unwrap_err();
            assert_eq!(e.kind(), Kind::UnknownKey, "{e}");
            assert!(e.to_string().contains(key) && e.hint_text().is_some_and(|h| h.contains(guess)), "{e}");
        }
        let e = Deck::parse("pattern = \"lamda\"").unwrap_err();
        assert_eq!(e.hint_text(), Some("did you mean \"lambda\"?"));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "",
            "F = 0.03",
            "pattern = \"mu\"\nF = 0.03\nk = 0.06",
            "pattern = \"mu\"\nshape = [2, 8, 8]",
            "pattern = \"mu\"\nshape = [8, 8]",
            "pattern = \"mu\"\nshape = [-8, 8, 8]",
            "pattern = \"mu\"\noutput_every = 0",
            "pattern = \"mu\"\ndt = 0.0",
            "pattern = \"mu\"\ndt = nan",
            "pattern = \"mu\"\nDu = 0.17",
            "pattern = \"mu\"\ndtype = \"int32\"",
            "pattern = \"mu\"\ndecomposition = [0, 1, 1]",
            "pattern = \"mu\"\ndecomposition = \"2x2\"",
            "pattern = \"mu\"\n[noise]\ninitial = 2.0",
            "pattern = mu",
        ] {
            assert_eq!(Deck::parse(text).unwrap_err().kind(), Kind::Usage, "{text}");
        }
        let outside = "pattern = \"mu\"\nshape = [8, 8, 8]\n[[seed]]\nstart = [4, 4, 4]\ncount = [4, 4, 5]";
        assert_eq!(Deck::parse(outside).unwrap_err().kind(), Kind::BoxOutsideShape);
    }

    #[test]
    fn decompositions_are_read_from_words() {
        assert_eq!(parse_decomposition("auto").unwrap(), None);
        assert_eq!(parse_decomposition("2x3x1").unwrap(), Some([2, 3, 1]));
        for bad in ["2x3", "2x3x0", "2x3x1x1", "axbxc", "2,3,1", ""] {
            assert!(parse_decomposition(bad).is_err(), "{bad}");
        }
    }
}

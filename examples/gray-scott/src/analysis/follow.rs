//! The analysis as one rank of a group of readers: follows a channel to its end.
//!
//! Each rank gets a slab of z planes, whatever boxes the producers put, and one plane more for the isosurface
//! cells between its slab and the next. The partial results of all planes go to rank 0 through a private
//! space, which combines them in the order of the planes and writes the files. Every version that the channel
//! retains is seen once and released as soon as it has been read.

use super::output::{Existing, ResultFile, FILE_NAME};
use super::slices::{Album, Plane};
use super::statistics::{combine, reduce_slab, PlanePartial, Recipe, When};
use crate::exchange::{Exchange, Member, Readers};
use crate::simulation::field::Cell;
use crate::simulation::split::part;
use forebay_space::{Attribute, Dtype, Error, Kind, NdBox, OpenOptions, Reader, Result, Writer};
use std::ops::Range;
use std::path::PathBuf;

/// What to compute and where to write it.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Channel to follow.
    pub channel: String,
    /// Variable of it: three-dimensional, float32 or float64.
    pub variable: String,
    /// Statistics.
    pub recipe: Recipe,
    /// Directory of the results; made when it does not exist. Only rank 0 writes.
    pub out: PathBuf,
    /// What to do when there are results already.
    pub existing: Existing,
    /// Pictures of every n-th version; 0 = none.
    pub slices_every: u64,
    /// Values at the two ends of the colour map.
    pub colour_range: [f64; 2],
}

/// What a rank did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Rank of this process.
    pub rank: usize,
    /// Number of ranks.
    pub ranks: usize,
    /// Versions read.
    pub versions: u64,
}

/// Follows the channel to its end as one rank of the group.
///
/// `options` are those of the channel; rank and size come from there or from the environment. Blocks until
/// the producers close, each wait until the timeout of the options.
pub fn follow(settings: &Settings, options: &OpenOptions) -> Result<Summary> {
    settings.recipe.validate()?;
    let [low, high] = settings.colour_range;
    if !(low.is_finite() && high.is_finite() && low < high) {
        return Err(Error::new(Kind::Usage, "the colour range needs a low end below its high end")
            .with("range", format!("{low}..{high}")));
    }
    let member = Member::new(&settings.channel, options, "analysis")?;
    let mut results = match member.rank {
        0 => Some(Results::new(settings)?),
        _ => None,
    };
    let reader = Reader::open(&settings.channel, &member.options)?;
    let followed = Follower { settings, member: &member, reader, link: None, versions: 0 }.run(&mut results);
    // Also after an error: what has been computed is worth an index.
    let finished = results.map_or(Ok(()), Results::finish);
    let versions = followed?;
    finished?;
    Ok(Summary { rank: member.rank, ranks: member.size, versions })
}

/// The part of the grid that this rank reduces.
#[derive(Clone, Debug)]
struct Slab {
    shape: [usize; 3],
    dtype: Dtype,
    own: Range<usize>,
}

impl Slab {
    /// The box to get: the own planes and the next one, if there is a next.
    fn wanted(&self) -> Result<NdBox> {
        let [nz, ny, nx] = self.shape.map(|n| n as u64);
        let (start, end) = (self.own.start as u64, (self.own.end as u64 + 1).min(nz));
        NdBox::new(&[start, 0, 0], &[end - start, ny, nx])
    }
}

struct Follower<'a> {
    settings: &'a Settings,
    member: &'a Member,
    reader: Reader,
    /// Opened at the first version, when the size of the partial results is known.
    link: Option<Exchange>,
    versions: u64,
}

impl Follower<'_> {
    fn run(mut self, results: &mut Option<Results<'_>>) -> Result<u64> {
        // An error here comes to all ranks alike. Leaving quietly lets rank 0 still combine what it was handed.
        while let Some(version) = self.reader.begin_step(None)? {
            if let Err(e) = self.version(version, results) {
                // As if this process had died, so that rank 0 does not wait for its part.
                self.link.into_iter().for_each(Exchange::abandon);
                return Err(e.with("channel", &self.settings.channel).with("version", version));
            }
            self.versions += 1;
        }
        self.reader.close()?;
        self.link.map_or(Ok(()), Exchange::finish)?;
        Ok(self.versions)
    }

    fn version(&mut self, version: u64, results: &mut Option<Results<'_>>) -> Result<()> {
        let slab = self.slab()?;
        match slab.dtype {
            Dtype::F32 => self.step::<f32>(version, &slab, results),
            _ => self.step::<f64>(version, &slab, results),
        }
    }

    /// One version: read, reduce, release, hand over; rank 0 also draws and combines.
    fn step<T: Cell>(&mut self, version: u64, slab: &Slab, results: &mut Option<Results<'_>>) -> Result<()> {
        let Settings { variable, recipe, .. } = self.settings;
        let mut histogram = recipe.histogram();
        let mut planes = Vec::new();
        if !slab.own.is_empty() {
            let values: Vec<T> = self.reader.get_array(variable, Some(&slab.wanted()?))?;
            planes =
                reduce_slab(&values, slab.own.len(), [slab.shape[1], slab.shape[2]], recipe, &mut histogram)?;
        }
        if let Some(results) = results {
            results.begin(version, slab, &self.reader)?;
            results.draw::<T>(slab, &mut self.reader, variable)?;
        }
        self.reader.end_step()?;
        if self.link.is_none() {
            self.link = Some(self.open_link(slab)?);
        }
        let link = self.link.as_mut().expect("opened above");
        let mut counts = vec![version, histogram.below, histogram.above];
        counts.extend(&histogram.counts);
        let (rank, ranks) = (self.member.rank as u64, self.member.size as u64);
        link.publish(self.versions, |writer: &mut Writer| {
            if !planes.is_empty() {
                let flat: Vec<f64> = planes.iter().flat_map(|p| p.to_array()).collect();
                let width = PlanePartial::WIDTH as u64;
                let (start, count) = ([slab.own.start as u64, 0], [planes.len() as u64, width]);
                writer.put_array("planes", &[slab.shape[0] as u64, width], &start, &count, &flat)?;
            }
            let width = counts.len() as u64;
            writer.put_array("counts", &[ranks, width], &[rank, 0], &[1, width], &counts)
        })?;
        if let Some(results) = results {
            link.collect(self.versions, |reader: &mut Reader| results.combine(version, slab, reader))?;
        }
        Ok(())
    }

    /// Checks the variable and finds this rank's planes.
    fn slab(&mut self) -> Result<Slab> {
        let (dtype, dims) = self.reader.array(&self.settings.variable)?;
        let shape: Option<[usize; 3]> = match dims.as_slice() {
            [z, y, x] if z * y * x > 0 => Some([*z as usize, *y as usize, *x as usize]),
            _ => None,
        };
        let (Some(shape), Dtype::F32 | Dtype::F64) = (shape, dtype) else {
            return Err(Error::new(
                Kind::Usage,
                "the analysis needs a three-dimensional float32 or float64 variable",
            )
            .with("variable", &self.settings.variable)
            .with("dtype", dtype.name())
            .with("shape", format!("{:?}", dims)));
        };
        Ok(Slab { shape, dtype, own: part(shape[0], self.member.size, self.member.rank) })
    }

    fn open_link(&self, slab: &Slab) -> Result<Exchange> {
        let planes = slab.shape[0].div_ceil(self.member.size);
        let numbers = planes * PlanePartial::WIDTH + self.settings.recipe.bins + 3;
        let name = format!("{}-partials", self.settings.channel);
        Exchange::open(&name, self.member, Readers::RankZero, 8 * numbers as u64)
    }
}

/// What rank 0 keeps and writes.
struct Results<'a> {
    settings: &'a Settings,
    file: ResultFile,
    album: Option<Album>,
    /// Version that is being worked on.
    when: When,
}

impl<'a> Results<'a> {
    fn new(settings: &'a Settings) -> Result<Results<'a>> {
        let file = ResultFile::prepare(&settings.out, FILE_NAME, settings.existing)?;
        Ok(Results { settings, file, album: None, when: When { version: 0, step: 0, time: 0.0 } })
    }

    /// Finds out step and time of this version from the channel's attributes. A channel that has none counts
    /// versions as steps of length 1.
    fn begin(&mut self, version: u64, slab: &Slab, reader: &Reader) -> Result<()> {
        let attributes = reader.attributes()?;
        let every = match attributes.get("output_every") {
            Some(Attribute::Int(n)) => u64::try_from(*n).unwrap_or(1),
            _ => 1,
        };
        let dt = match attributes.get("dt") {
            Some(Attribute::Float(dt)) => *dt,
            Some(Attribute::Int(dt)) => *dt as f64,
            _ => 1.0,
        };
        let step = version * every;
        self.when = When { version, step, time: step as f64 * dt };
        if self.album.is_none() {
            let Settings { out, channel, variable, colour_range, .. } = self.settings;
            let shape = slab.shape.map(|n| n as u64);
            self.album = Some(Album::new(out, channel, variable, &shape, *colour_range));
        }
        Ok(())
    }

    /// Pictures of the three planes through the middle of the grid.
    fn draw<T: Cell>(&mut self, slab: &Slab, reader: &mut Reader, variable: &str) -> Result<()> {
        let every = self.settings.slices_every;
        if every == 0 || self.when.version % every != 0 {
            return Ok(());
        }
        let mut values: [Vec<f64>; 3] = Default::default();
        for (axis, values) in values.iter_mut().enumerate() {
            let (mut start, mut count) = ([0; 3], slab.shape.map(|n| n as u64));
            (start[axis], count[axis]) = (slab.shape[axis] as u64 / 2, 1);
            let plane: Vec<T> = reader.get_array(variable, Some(&NdBox::new(&start, &count)?))?;
            *values = plane.into_iter().map(Cell::wide).collect();
        }
        let [nz, ny, nx] = slab.shape;
        let sizes = [(ny, nx), (nz, nx), (nz, ny)];
        let planes = [0, 1, 2].map(|axis| Plane {
            axis,
            index: slab.shape[axis] / 2,
            rows: sizes[axis].0,
            columns: sizes[axis].1,
            values: &values[axis],
        });
        self.album.as_mut().expect("made in begin").add(self.when, &planes)
    }

    /// Combines what all ranks handed over and writes the line.
    fn combine(&mut self, version: u64, slab: &Slab, partials: &mut Reader) -> Result<()> {
        let counts: Vec<u64> = partials.get_array("counts", None)?;
        let mut total = self.settings.recipe.histogram();
        for of_rank in counts.chunks_exact(self.settings.recipe.bins + 3) {
            if of_rank[0] != version {
                return Err(Error::new(
                    Kind::GroupMismatch,
                    "the ranks of the analysis have read different versions",
                )
                .with("rank_0", version)
                .with("another", of_rank[0])
                .hint("a channel that drops versions unread (retention last:K) lets readers get different versions"));
            }
            total.below += of_rank[1];
            total.above += of_rank[2];
            total.counts.iter_mut().zip(&of_rank[3..]).for_each(|(a, b)| *a += b);
        }
        let numbers: Vec<f64> = partials.get_array("planes", None)?;
        let planes: Vec<PlanePartial> = numbers
            .chunks_exact(PlanePartial::WIDTH)
            .map(|n| PlanePartial::from_array([n[0], n[1], n[2], n[3]]))
            .collect();
        let statistics = combine(self.when, &planes, slab.shape[1] * slab.shape[2], total);
        self.file.append(version, &statistics)
    }

    fn finish(self) -> Result<()> {
        self.album.map_or(Ok(()), |album| album.finish())
    }
}

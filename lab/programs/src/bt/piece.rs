//! A rank's piece of the grid: planes for the first half of a step, columns for the second, which ranks change over
//! to through a space.
//!
//! The inner planes are shared out, and the inner rows of all planes. After the first half every rank puts the
//! right-hand side of its planes, and gets that of its columns from all; after the second it puts the field of its
//! columns, and gets that of its planes with two on either side. So lines never end at a neighbour, and no rank
//! waits for another within a half. The boundary, which never changes, belongs to the first and the last of them.

use std::ops::Range;

use forebay_space::{Error, Kind, NdBox, Result};

use super::exact::{exact, initial};
use super::operator::{derive, Planes};
use super::sweep::{planes, sheets, Half, Sheet};
use super::{Norms, Problem, COMPONENTS};
use gray_scott::exchange::{Exchange, Member, Readers};
use gray_scott::simulation::split::part;

/// Planes on either side that the operator looks at.
const BESIDE: usize = 2;

/// See the file's head.
pub struct Piece {
    problem: Problem,
    threads: usize,
    step: u64,
    /// The next round of the exchange.
    round: u64,
    exchange: Exchange,
    /// Inner planes that are this rank's, and inner rows.
    own_planes: Range<usize>,
    own_rows: Range<usize>,
    /// Planes that are there, and the components of their points; the forcing and the right-hand side of its own.
    there: Range<usize>,
    u: Vec<f64>,
    rho_i: Vec<f64>,
    square: Vec<f64>,
    forcing: Vec<f64>,
    rhs: Vec<f64>,
    /// The field of this rank's rows in all planes, those of the boundary with the first and the last rank; the
    /// right-hand side of the inner ones.
    rows: Range<usize>,
    columns: Vec<f64>,
    columns_rhs: Vec<f64>,
}

/// With the first and the last plane or row, where they are next to it.
fn with_boundary(inner: &Range<usize>, n: usize) -> Range<usize> {
    let first = if inner.start == 1 { 0 } else { inner.start };
    first..if inner.end == n - 1 { n } else { inner.end }
}

fn boxed(start: [usize; 4], count: [usize; 4]) -> Result<NdBox> {
    NdBox::new(&start.map(|x| x as u64), &count.map(|x| x as u64))
}

impl Piece {
    /// The piece of this rank at the beginning of a run. `channel` is the name of the space that pieces are exchanged
    /// through. Waits for the space until the deadline of the options.
    ///
    /// # Errors
    /// `Usage` for more ranks than there are inner planes; what opening the space says.
    pub(crate) fn new(problem: Problem, channel: &str, member: &Member, threads: usize) -> Result<Piece> {
        let n = problem.n;
        if member.size > n - 2 {
            return Err(Error::new(Kind::Usage, "there are more ranks than inner planes of the grid")
                .with("ranks", member.size)
                .with("inner_planes", n - 2)
                .hint("fewer ranks, or a larger class"));
        }
        let own = part(n - 2, member.size, member.rank);
        let own = own.start + 1..own.end + 1;
        let there = own.start.saturating_sub(BESIDE)..(own.end + BESIDE).min(n);
        let rows = with_boundary(&own, n);
        let (plane, row) = (problem.plane_values(), n * COMPONENTS);
        // Of the largest part, so that all ranks ask for the same size.
        let most = (0..member.size).map(|rank| part(n - 2, member.size, rank).len()).max().unwrap_or(0);
        let round_bytes = (n * (most + 2) * row * size_of::<f64>()) as u64;
        let exchange = Exchange::open(&format!("{channel}-bt"), member, Readers::All, round_bytes)?;
        let points = there.len() * n * n;
        let mut piece = Piece {
            problem,
            threads,
            step: 0,
            round: 0,
            exchange,
            u: vec![0.0; points * COMPONENTS],
            rho_i: vec![0.0; points],
            square: vec![0.0; points],
            forcing: vec![0.0; own.len() * plane],
            rhs: vec![0.0; own.len() * plane],
            columns: vec![0.0; n * rows.len() * row],
            columns_rhs: vec![0.0; (n - 2) * own.len() * row],
            own_planes: own.clone(),
            own_rows: own,
            there,
            rows,
        };
        piece.begin();
        Ok(piece)
    }

    fn begin(&mut self) {
        let (problem, n) = (self.problem, self.problem.n);
        problem.fill(self.there.start, &mut self.u, |place, _| exact(place));
        derive(&self.u, &mut self.rho_i, &mut self.square);
        let zeros = vec![0.0; self.forcing.len()];
        let timeless = Problem { dt: -1.0, ..problem };
        let (first, u) = (self.there.start, &self.u[..]);
        let field = Planes { problem: timeless, first, u, rho_i: &self.rho_i, square: &self.square };
        planes(&field, self.own_planes.clone(), &zeros, &mut self.forcing, Half::Side, self.threads);
        problem.fill(self.there.start, &mut self.u, initial);
        derive(&self.u, &mut self.rho_i, &mut self.square);
        let row = n * COMPONENTS;
        for (at, values) in self.columns.chunks_exact_mut(row).enumerate() {
            let (j, k) = (self.rows.start + at % self.rows.len(), at / self.rows.len());
            for (i, point) in values.chunks_exact_mut(COMPONENTS).enumerate() {
                let on_boundary = problem.is_boundary([i, j, k]);
                point.copy_from_slice(&initial(problem.place(i, j, k), on_boundary));
            }
        }
    }

    /// Steps that were done.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// What is computed.
    pub fn problem(&self) -> Problem {
        self.problem
    }

    /// The planes of the field that this rank saves, those of the boundary among them: which, and their points.
    pub fn saved(&self) -> (Range<usize>, &[f64]) {
        let saved = with_boundary(&self.own_planes, self.problem.n);
        let plane = self.problem.plane_values();
        let from = (saved.start - self.there.start) * plane;
        let values = &self.u[from..from + saved.len() * plane];
        (saved, values)
    }

    /// The rows that this rank has of all planes: which, and their points.
    pub(super) fn columns(&self) -> (Range<usize>, &[f64]) {
        (self.rows.clone(), &self.columns)
    }

    /// Goes on from a field that was saved after a step, which `read` gives: the points of these planes and rows.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn restore(
        &mut self,
        step: u64,
        mut read: impl FnMut(Range<usize>, Range<usize>, &mut [f64]) -> Result<()>,
    ) -> Result<()> {
        read(self.there.clone(), 0..self.problem.n, &mut self.u)?;
        read(0..self.problem.n, self.rows.clone(), &mut self.columns)?;
        derive(&self.u, &mut self.rho_i, &mut self.square);
        self.step = step;
        Ok(())
    }

    fn first_half(&mut self, half: Half) {
        let (problem, first) = (self.problem, self.there.start);
        let field = Planes { problem, first, u: &self.u, rho_i: &self.rho_i, square: &self.square };
        planes(&field, self.own_planes.clone(), &self.forcing, &mut self.rhs, half, self.threads);
    }

    /// Waits until all ranks have come as far.
    ///
    /// # Errors
    /// As [`Piece::advance`].
    pub fn meet(&mut self) -> Result<()> {
        self.add_up(&mut [0.0])
    }

    /// Adds these numbers up over all ranks.
    pub(super) fn add_up(&mut self, part: &mut [f64]) -> Result<()> {
        let round = self.next_round();
        self.exchange.add_up(round, "part", part)
    }

    fn next_round(&mut self) -> u64 {
        self.round += 1;
        self.round - 1
    }

    /// One step. Waits for the other ranks.
    ///
    /// # Errors
    /// `ProducerDied` when one has gone, `Timeout`.
    pub fn advance(&mut self) -> Result<()> {
        self.first_half(Half::Solved);
        self.planes_to_columns()?;
        let (problem, threads) = (self.problem, self.threads);
        let mut all = self.sheets();
        sheets(&problem, &mut all, threads);
        drop(all);
        self.columns_to_planes()?;
        derive(&self.u, &mut self.rho_i, &mut self.square);
        self.step += 1;
        Ok(())
    }

    fn planes_to_columns(&mut self) -> Result<()> {
        let (n, round) = (self.problem.n, self.next_round());
        let (own, rows) = (&self.own_planes, &self.own_rows);
        let shape = [n, n, n, COMPONENTS].map(|x| x as u64);
        let (start, count) = ([own.start, 0, 0, 0], [own.len(), n, n, COMPONENTS]);
        let rhs = &self.rhs;
        self.exchange.publish(round, |writer| {
            writer.put_array("rhs", &shape, &start.map(|x| x as u64), &count.map(|x| x as u64), rhs)
        })?;
        let wanted = boxed([1, rows.start, 0, 0], [n - 2, rows.len(), n, COMPONENTS])?;
        let into = bytemuck::cast_slice_mut(&mut self.columns_rhs);
        self.exchange.collect(round, |reader| reader.get("rhs", Some(&wanted), into))
    }

    fn columns_to_planes(&mut self) -> Result<()> {
        let (n, round) = (self.problem.n, self.next_round());
        let shape = [n, n, n, COMPONENTS].map(|x| x as u64);
        let (start, count) = ([0, self.rows.start, 0, 0], [n, self.rows.len(), n, COMPONENTS]);
        let columns = &self.columns;
        self.exchange.publish(round, |writer| {
            writer.put_array("u", &shape, &start.map(|x| x as u64), &count.map(|x| x as u64), columns)
        })?;
        let wanted = boxed([self.there.start, 0, 0, 0], [self.there.len(), n, n, COMPONENTS])?;
        let into = bytemuck::cast_slice_mut(&mut self.u);
        self.exchange.collect(round, |reader| reader.get("u", Some(&wanted), into))
    }

    /// The inner rows in inner planes, by row.
    fn sheets(&mut self) -> Vec<Sheet<'_>> {
        let (n, row) = (self.problem.n, self.problem.n * COMPONENTS);
        let (rows, own) = (self.rows.clone(), self.own_rows.clone());
        let mut all: Vec<Sheet<'_>> =
            own.clone().map(|_| Sheet { u: Vec::new(), rhs: Vec::new(), derived: Vec::new() }).collect();
        for (at, u) in self.columns.chunks_exact_mut(row).enumerate() {
            let (j, k) = (rows.start + at % rows.len(), at / rows.len());
            if own.contains(&j) && (1..n - 1).contains(&k) {
                all[j - own.start].u.push(u);
            }
        }
        for (at, rhs) in self.columns_rhs.chunks_exact_mut(row).enumerate() {
            all[at % own.len()].rhs.push(rhs);
        }
        all
    }

    /// How far the whole field is from rest and from the exact solution: the same bits for all ranks.
    ///
    /// # Errors
    /// As [`Piece::advance`].
    pub fn norms(&mut self) -> Result<Norms> {
        self.first_half(Half::Side);
        let (problem, plane) = (self.problem, self.problem.plane_values());
        let from = (self.own_planes.start - self.there.start) * plane;
        let each = self.u[from..].chunks_exact(plane).zip(self.rhs.chunks_exact(plane));
        let own: Vec<f64> = self
            .own_planes
            .clone()
            .zip(each)
            .map(|(k, (u, rhs))| problem.sums(k, u, rhs))
            .flat_map(|sums| sums.residual.into_iter().chain(sums.error))
            .collect();
        let sums = self.add_planes(self.own_planes.clone(), &own)?;
        let half = |from: usize| std::array::from_fn(|m| sums[from + m]);
        Ok(problem.norms(&Norms { residual: half(0), error: half(COMPONENTS) }))
    }

    /// Adds up what all ranks say of their inner planes, plane by plane, so that every rank gets the same bits for
    /// every number of ranks.
    pub(super) fn add_planes(&mut self, planes: Range<usize>, own: &[f64]) -> Result<Vec<f64>> {
        let (round, n) = (self.next_round(), self.problem.n as u64);
        let width = (own.len() / planes.len()) as u64;
        let (start, count) = ([planes.start as u64, 0], [planes.len() as u64, width]);
        let mut sums = vec![0.0; width as usize];
        self.exchange.publish(round, |writer| writer.put_array("sums", &[n, width], &start, &count, own))?;
        let inner = NdBox::new(&[1, 0], &[n - 2, width])?;
        self.exchange.collect(round, |reader| {
            let all: Vec<f64> = reader.get_array("sums", Some(&inner))?;
            for plane in all.chunks_exact(sums.len()) {
                sums.iter_mut().zip(plane).for_each(|(sum, x)| *sum += x);
            }
            Ok(())
        })?;
        Ok(sums)
    }

    /// Ends this rank's part; waits for the others.
    ///
    /// # Errors
    /// What closing the space says.
    pub fn finish(self) -> Result<()> {
        self.exchange.finish()
    }

    /// Ends it as if this process had died, so that the others stop waiting for it.
    pub fn abandon(self) {
        self.exchange.abandon();
    }
}

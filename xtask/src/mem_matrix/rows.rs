//! The rows: programs as they are used, with data that do not fit their budget.

use super::ground::Ground;

/// One program.
pub struct Row {
    pub name: &'static str,
    /// Seconds, and nothing to install: part of `make test-all`.
    pub small: bool,
    pub budget_mib: u64,
    /// Options of `forebay mem` beside budget and tier.
    pub options: &'static [&'static str],
    /// What it may take, plain or not.
    pub limit_s: u64,
    /// Program and arguments; the error is why it cannot run here.
    pub command: fn(&Ground) -> Result<Vec<String>, String>,
}

const COMPILE: &[&str] = &["cc", "-O2", "-pthread"];

const fn small(name: &'static str, command: fn(&Ground) -> Result<Vec<String>, String>) -> Row {
    Row { name, small: true, budget_mib: 8, options: &[], limit_s: 180, command }
}

const fn large(
    name: &'static str,
    budget_mib: u64,
    command: fn(&Ground) -> Result<Vec<String>, String>,
) -> Row {
    Row { name, small: false, budget_mib, options: &[], limit_s: 300, command }
}

/// All of them, in the order in which they run.
pub const ROWS: &[Row] = &[
    small("stdio", |ground| words(&[&path(ground.compile("stdio", "stdio.c", COMPILE))?, "2"])),
    small("kernel-mvt", |ground| kernel(ground, "mvt", "32")),
    small("kernel-gemver", |ground| kernel(ground, "gemver", "32")),
    small("kernel-jacobi-2d", |ground| kernel(ground, "jacobi-2d", "32")),
    small("kernel-fill", |ground| kernel(ground, "fill", "256")),
    small("kernel-rush", |ground| kernel(ground, "rush", "64")),
    small("kernel-jumps", |ground| kernel(ground, "jumps", "32")),
    small("static", |ground| {
        let program = ground.compile("kernels-static", "kernels.c", &["cc", "-O2", "-static"]);
        words(&[&path(program)?, "gemver", "32"])
    }),
    small("python-fork", |ground| python(ground, "fork")),
    small("python-pool-fork", |ground| python(ground, "pool")),
    small("python-pool-spawn", |ground| python(ground, "spawn")),
    small("python-threads", |ground| python(ground, "threads")),
    small("python-urandom", |ground| python(ground, "random")),
    small("python-subprocess", |ground| python(ground, "subprocess")),
    small("sort", |ground| sort(ground, ("lines", 300_000), "24M")),
    small("xz", |ground| {
        let lines = path(ground.lines("lines", 300_000))?;
        let script =
            "xz -1 -T2 --block-size=1MiB -c \"$0\" >lines.xz && xz -dc lines.xz | cmp - \"$0\" && echo ok";
        path(ground.find(&["xz"]))?;
        words(&["sh", "-c", script, &lines])
    }),
    small("gcc", |ground| {
        let source = path(ground.source("functions.c", 500))?;
        words(&[&path(ground.find(&["gcc"]))?, "-O1", "-c", "-o", "functions.o", &source])
    }),
    large("python-fork-64", 64, |ground| python(ground, "fork")),
    large("numpy", 32, |ground| package(ground, "numpy", "160")),
    large("pandas", 64, |ground| package(ground, "pandas", "160")),
    large("pyarrow", 64, |ground| package(ground, "pyarrow", "160")),
    large("polars", 64, |ground| package(ground, "polars", "160")),
    large("pyarrow-groups", 128, |ground| package(ground, "pyarrow-groups", "400")),
    large("polars-256", 256, |ground| package(ground, "polars", "600")),
    large("duckdb", 64, |ground| package(ground, "duckdb", "160")),
    large("redis", 16, |ground| {
        let server = path(ground.find(&["redis-server", "redis-check-rdb"]))?;
        let benchmark = path(ground.find(&["redis-benchmark"]))?;
        // The server is the other program by another name, and looks which.
        let script = "ln -s \"$1\" redis-server && python3 \"$0\" ./redis-server \"$2\"; rm -f redis-server";
        words(&["sh", "-c", script, &text(ground, "database.py"), &server, &benchmark])
    }),
    large("java", 16, |ground| {
        path(ground.find(&["javac"]))?;
        let script = "java=$(readlink -f \"$(command -v java)\") && \"${java}c\" -d . \"$0\" && \
                      exec \"$java\" -Xmx96m -cp . Arrays 32";
        words(&["sh", "-c", script, &text(ground, "Arrays.java")])
    }),
    large("go", 16, |ground| words(&[&path(ground.compile("arrays-go", "arrays.go", &["go"]))?, "48"])),
    large("mpi", 16, |ground| {
        let ranks = path(ground.compile("ranks", "ranks.c", &["mpicc.mpich", "-O2"]))?;
        words(&[&path(ground.find(&["mpiexec.mpich", "mpiexec.hydra"]))?, "-n", "2", &ranks, "32"])
    }),
    large("sort-149", 128, |ground| sort(ground, ("lines-149", 6_000_000), "400M")),
    large("xz-9", 128, |ground| {
        let lines = path(ground.lines("lines-40", 1_500_000))?;
        words(&[&path(ground.find(&["xz"]))?, "-7", "-T1", "-c", &lines])
    }),
    large("gcc-2", 32, |ground| {
        let source = path(ground.source("functions-2.c", 3000))?;
        words(&[&path(ground.find(&["gcc"]))?, "-O2", "-c", "-o", "functions.o", &source])
    }),
    large("kernel-mvt-200", 48, |ground| kernel(ground, "mvt", "200")),
    large("kernel-gemver-200", 48, |ground| kernel(ground, "gemver", "200")),
    large("kernel-jacobi-2d-200", 48, |ground| kernel(ground, "jacobi-2d", "200")),
];

fn path(found: Result<std::path::PathBuf, String>) -> Result<String, String> {
    found.map(|path| path.display().to_string())
}

fn text(ground: &Ground, program: &str) -> String {
    ground.program(program).display().to_string()
}

fn words(words: &[&str]) -> Result<Vec<String>, String> {
    Ok(words.iter().map(|word| (*word).to_string()).collect())
}

fn kernel(ground: &Ground, name: &str, mebibytes: &str) -> Result<Vec<String>, String> {
    words(&[&path(ground.compile("kernels", "kernels.c", COMPILE))?, name, mebibytes])
}

fn sort(ground: &Ground, lines: (&str, usize), buffer: &str) -> Result<Vec<String>, String> {
    let program = path(ground.find(&["sort"]))?;
    let lines = path(ground.lines(lines.0, lines.1))?;
    words(&[&program, "-S", buffer, "--parallel=2", "-k", "2", "-o", "sorted", &lines])
}

fn python(ground: &Ground, what: &str) -> Result<Vec<String>, String> {
    words(&[&path(ground.find(&["python3"]))?, &text(ground, "interpreter.py"), what])
}

fn package(ground: &Ground, name: &str, mebibytes: &str) -> Result<Vec<String>, String> {
    // Of one package there may be several programs.
    let package = name.split('-').next().unwrap_or(name);
    words(&[&path(ground.package(package))?, &text(ground, "packages.py"), name, mebibytes])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_names() {
        for (at, row) in ROWS.iter().enumerate() {
            assert!(!ROWS[..at].iter().any(|before| before.name == row.name), "{} twice", row.name);
        }
        assert!(ROWS.iter().any(|row| row.small) && ROWS.iter().any(|row| !row.small));
    }
}

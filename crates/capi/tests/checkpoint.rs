//! Checkpoints as C and Fortran programs see them: calls and errors, a kill, ranks by environment, and the programs of
//! the guide.

mod support;

use support::{examples, have, here, must, Running, Workshop, STRICT_C};

fn c_shop(what: &str) -> Option<Workshop> {
    if !have("cc", what) {
        return None;
    }
    let shop = Workshop::new();
    shop.cc(&here().join("tests/c/checkpoint.c"), "checkpoint-c", &STRICT_C);
    Some(shop)
}

/// On a disk: what a level below memory survives is another thing there.
fn elsewhere() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("ck").display().to_string();
    (folder, path)
}

#[test]
fn c_saves_restores_and_is_refused() {
    let Some(shop) = c_shop("checkpoints from C") else { return };
    let (_folder, path) = elsewhere();
    let mut all = Running::start(shop.program("checkpoint-c", &["all", &path]));
    let output = all.output();
    assert_eq!(output.status.code(), Some(0), "{}", support::streams(&output));
    assert_eq!(output.stdout, b"ok\n");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("forebay: step 2 of run 1 in "), "{told}");
    assert!(
        told.contains("forebay: warning: step 2 was saved and is lost; continuing from step 1\n"),
        "an older step is never taken without a word: {told}"
    );
}

#[test]
fn a_killed_c_program_goes_on_behind_its_last_save() {
    let Some(shop) = c_shop("a killed program in C") else { return };
    let (_folder, path) = elsewhere();
    let mut first = Running::start(shop.program("checkpoint-c", &["steps", &path, "100000"]));
    first.wait_for_file(&shop.path("saved-7"));
    first.kill();
    let saved = (7..).take_while(|step| shop.path(&format!("saved-{step}")).exists()).last().unwrap_or(7);
    let last = (saved + 3).to_string();
    let said = must(shop.program("checkpoint-c", &["steps", &path, &last]));
    let began: u64 = said.trim().parse().expect("a step");
    // The step behind the last acknowledged one may have been saved before its file was made.
    assert!((saved + 1..=saved + 2).contains(&began), "it went on at {began}, and {saved} was saved");
}

#[test]
fn ranks_come_from_the_environment_of_each_launcher() {
    let Some(shop) = c_shop("ranks of a checkpoint in C") else { return };
    let launchers: [(&str, &str); 5] = [
        ("FOREBAY_RANK", "FOREBAY_SIZE"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),
        ("FLUX_TASK_RANK", "FLUX_JOB_SIZE"),
        ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ];
    for (rank_name, size_name) in launchers {
        let (_folder, path) = elsewhere();
        // Two ranks save, three go on.
        for size in [2, 3] {
            let start = |rank: usize| {
                let mut command = shop.program("checkpoint-c", &["rank", &path]);
                command.env(rank_name, rank.to_string()).env(size_name, size.to_string());
                command.env("SLURM_STEP_ID", "0");
                if !rank_name.starts_with("SLURM") {
                    command.env_remove("SLURM_STEP_ID");
                }
                Running::start(command)
            };
            let running: Vec<Running> = (0..size).map(start).collect();
            for (rank, mut process) in running.into_iter().enumerate() {
                let said = process.ends_with(0);
                assert_eq!(said, format!("{rank} of {size} from row {}\n", 6 * rank / size), "{rank_name}");
            }
        }
    }
}

#[test]
fn fortran_saves_restores_and_is_refused() {
    if !have("gfortran", "checkpoints from Fortran") {
        return;
    }
    let shop = Workshop::new();
    shop.fortran(&here().join("tests/fortran/checkpoint.f90"), "checkpoint-f");
    let (_folder, path) = elsewhere();
    assert_eq!(must(shop.program("checkpoint-f", &[&path])).trim(), "ok");
}

/// The guide shows these programs whole; they are started twice, and the second run goes on where the first ended.
fn goes_on(shop: &Workshop, program: &str) {
    let run = |steps: &str| must(shop.program(program, &["ck", steps]));
    assert_eq!(run("4"), "from step 0 to 3: 6.0\n");
    assert_eq!(run("7"), "from step 4 to 6: 21.0\n");
}

fn is_in_the_guide(file: &str, language: &str) {
    let page = here().join("../../docs/src/guide/checkpoint.md");
    let page = std::fs::read_to_string(page).expect("the guide");
    let program = std::fs::read_to_string(examples().join(file)).expect("the example");
    // The page leaves the head away, which says how to build it.
    let (_, body) = program.split_once("\n\n").expect("a head and a program");
    assert!(page.contains(&format!("```{language}\n{body}```\n")), "{file} is not in the guide as it is");
}

#[test]
fn the_c_program_of_the_guide_goes_on() {
    is_in_the_guide("c/restart.c", "c");
    if !have("cc", "the guide's program in C") {
        return;
    }
    let shop = Workshop::new();
    shop.cc(&examples().join("c/restart.c"), "restart", &STRICT_C);
    goes_on(&shop, "restart");
}

#[test]
fn the_fortran_program_of_the_guide_goes_on() {
    is_in_the_guide("fortran/restart.f90", "fortran");
    if !have("gfortran", "the guide's program in Fortran") {
        return;
    }
    let shop = Workshop::new();
    shop.fortran(&examples().join("fortran/restart.f90"), "restart");
    goes_on(&shop, "restart");
}

//! Help texts of the lab, word for word. `TRYCMD=overwrite cargo test -p forebay-lab` writes them anew.

use crate::bench::Bench;

#[test]
fn help_reads_as_recorded() {
    let bench = Bench::new();
    let cases = trycmd::TestCases::new();
    for name in std::env::vars().map(|(name, _)| name).filter(|n| n.starts_with("FOREBAY_") || n == "COLUMNS")
    {
        // trycmd can set variables but not remove them; an empty one counts as none.
        cases.env(name, "");
    }
    cases
        .env("FOREBAY_DIR", bench.root().display().to_string())
        .env("NO_COLOR", "1")
        .env("XDG_DATA_HOME", bench.root().join("data").display().to_string())
        .env("SHELL", "");
    cases.register_bin("forebay", trycmd::schema::Bin::Path(crate::forebay().to_owned()));
    cases.case("tests/cmd/*.trycmd");
    // Runs when it goes out of scope, while the root of spaces is still there.
    drop(cases);
}

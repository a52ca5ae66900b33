//! What a run of all stages counted: passed, failed, skipped with reasons, and the closing lines.
//!
//! A test that cannot run here is a third result. Rust tests say so by a line in the file that `FOREBAY_SKIPS`
//! names (libtest knows no such result and counts them as passed; they are taken off again here), pytest by itself,
//! stages by a call.

/// The counts of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// Tests and stages that did what they should.
    pub passed: usize,
    /// Tests and stages that did not.
    pub failed: usize,
    /// What could not run here, and why.
    pub skips: Vec<String>,
    /// What failed, for the end of the output.
    pub failures: Vec<String>,
}

impl Summary {
    /// A stage that counts as one test.
    pub fn stage(&mut self, name: &str, failure: Option<String>) {
        match failure {
            None => self.passed += 1,
            Some(why) => self.fail(format!("{name}: {why}")),
        }
    }

    /// One failure.
    pub fn fail(&mut self, what: String) {
        self.failed += 1;
        self.failures.push(what);
    }

    /// One thing that could not run here.
    pub fn skip(&mut self, what: &str, why: &str) {
        self.skips.push(format!("{what}: {why}"));
    }

    /// Adds what another one has counted.
    pub fn add(&mut self, other: Summary) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skips.extend(other.skips);
        self.failures.extend(other.failures);
    }

    /// Adds the counts of the output of `cargo test` or of one test binary. `noted` are the lines that the tests
    /// wrote into the skip file; `label` stands before each of them.
    pub fn libtest(&mut self, label: &str, output: &str, noted: &str) {
        let noted: Vec<&str> = noted.lines().filter(|line| !line.trim().is_empty()).collect();
        let mut passed = 0;
        for line in output.lines().filter(|line| line.starts_with("test result: ")) {
            passed += count_before(line, " passed");
            self.failed += count_before(line, " failed");
        }
        let failed = failing(output).into_iter();
        self.failures.extend(failed.map(|name| format!("{label}: {name}{}", said_by(output, name))));
        let ignored = output.lines().filter(|line| line.starts_with("test ") && line.contains("... ignored"));
        self.skips.extend(
            ignored.map(|line| format!("{label}: {}", line[5..].replace(" ... ignored", ": ignored"))),
        );
        self.passed += passed - noted.len().min(passed);
        let reason = |line: &&str| format!("{label}: {}", line.trim_start_matches("SKIPPED "));
        self.skips.extend(noted.iter().map(reason));
    }

    /// Adds the counts of pytest's output, which must have been called with `-rs`. Returns whether it ran a test.
    pub fn pytest(&mut self, output: &str) -> bool {
        let closing = output.lines().rev().find(|line| line.contains(" in ") && line.contains(" passed"));
        let closing = closing.or_else(|| {
            output.lines().rev().find(|line| line.contains(" failed") || line.contains(" error"))
        });
        let Some(line) = closing else { return false };
        let (passed, failed) = (count_before(line, " passed"), count_before(line, " failed"));
        let errors = count_before(line, " error");
        self.passed += passed;
        self.failed += failed + errors;
        for line in output.lines() {
            let failing = line.strip_prefix("FAILED ").or_else(|| line.strip_prefix("ERROR "));
            self.failures.extend(failing.map(|what| format!("pytest: {what}")));
            if let Some(rest) = line.strip_prefix("SKIPPED [") {
                let (times, why) = rest.split_once("] ").unwrap_or(("1", rest));
                let times = times.parse().unwrap_or(1);
                self.skips.extend((0..times).map(|_| format!("pytest: {why}")));
            }
        }
        passed + failed + errors > 0
    }

    /// The closing lines; the last one is the count, alone on its line.
    pub fn print(&self) -> String {
        let mut text = String::new();
        for skip in &self.skips {
            text.push_str(&format!("skipped  {skip}\n"));
        }
        for failure in &self.failures {
            text.push_str(&format!("FAILED   {failure}\n"));
        }
        text + &format!("{} passed, {} failed, {} skipped\n", self.passed, self.failed, self.skips.len())
    }
}

/// Names of the tests that failed, in the order of the output of one or more test binaries. The lists at their ends
/// name also those whose line was mixed with the output of a process.
fn failing(output: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut is_list = false;
    for line in output.lines() {
        let by_line = line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED"));
        let by_list = line.strip_prefix("    ").filter(|name| is_list && !name.contains(' '));
        is_list = line == "failures:" || (is_list && by_list.is_some());
        let named = by_line.or(by_list).filter(|name| !found.contains(name));
        found.extend(named);
    }
    found
}

/// How many lines of a failed test the closing lines repeat.
const SAID_LINES: usize = 12;

/// The first lines that a failed test printed, each on a line of its own behind its name.
fn said_by(output: &str, name: &str) -> String {
    let begin = format!("---- {name} stdout ----");
    let said = output.lines().skip_while(|line| *line != begin).skip(1).skip_while(|line| line.is_empty());
    let own = |line: &&str| *line != "stack backtrace:" && *line != "failures:" && !line.starts_with("---- ");
    said.take_while(own)
        .take(SAID_LINES)
        .filter(|line| !line.is_empty())
        .map(|line| format!("\n         {line}"))
        .collect()
}

/// The number that stands before `what` in the line, or 0.
fn count_before(line: &str, what: &str) -> usize {
    let Some(at) = line.find(what) else { return 0 };
    let digits = line[..at].chars().rev().take_while(char::is_ascii_digit).collect::<String>();
    digits.chars().rev().collect::<String>().parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libtest_is_counted_and_noted_skips_are_no_passes() {
        let output = "test a::b ... ok\ntest a::c ... FAILED\ntest a::d ... ignored, slow\n\
            test result: FAILED. 12 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s\n\
            test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s\n";
        let mut summary = Summary::default();
        summary.libtest("tests", output, "SKIPPED pmem::maps: no MAP_SYNC here\n\n");
        assert_eq!((summary.passed, summary.failed, summary.skips.len()), (14, 1, 2));
        assert_eq!(summary.failures, ["tests: a::c"]);
        assert_eq!(summary.skips, ["tests: a::d: ignored, slow", "tests: pmem::maps: no MAP_SYNC here"]);
    }

    #[test]
    fn a_failure_whose_line_is_mixed_with_other_output_is_named() {
        let output =
            "test a::b ... panicked\nFAILED\ntest a::c ... FAILED\nfailures:\n\n---- a::b stdout ----\n    \
            text\n\nfailures:\n    a::b\n    a::c\n\ntest result: FAILED. 12 passed; 2 failed\n    a::d\n";
        let mut summary = Summary::default();
        summary.libtest("tests", output, "");
        assert_eq!(
            (summary.failed, summary.failures),
            (2, vec!["tests: a::c".into(), "tests: a::b\n             text".to_string()])
        );
    }

    #[test]
    fn a_failed_test_is_named_with_what_it_said_first() {
        let many = (0..20).map(|i| format!("line {i}\n")).collect::<String>();
        let output = format!(
            "failures:\n\n---- a::b stdout ----\n\nthread 'a::b' panicked at x.rs:3:5:\nassertion failed\n\
             stack backtrace:\n   0: begin\n\n---- a::bc stdout ----\n{many}\nfailures:\n    a::b\n    a::bc\n"
        );
        let said = "\n         thread 'a::b' panicked at x.rs:3:5:\n         assertion failed";
        assert_eq!(said_by(&output, "a::b"), said);
        assert_eq!(said_by(&output, "a::bc").lines().count(), 1 + SAID_LINES);
        assert_eq!(said_by(&output, "a::x"), "");
    }

    #[test]
    fn pytest_is_counted() {
        let mut summary = Summary::default();
        let output = "SKIPPED [2] test_a.py:3: no gfortran\nFAILED test_a.py::test_b - assert 0\n\
            ==== 1 failed, 20 passed, 2 skipped in 1.2s ====\n";
        assert!(summary.pytest(output));
        assert_eq!((summary.passed, summary.failed, summary.skips.len()), (20, 1, 2));
        assert_eq!(summary.failures, ["pytest: test_a.py::test_b - assert 0"]);
        assert!(!Summary::default().pytest("==== no tests ran in 0.1s ====\n"));
        assert!(Summary::default().pytest("==== 2 errors in 0.1s ====\n"));
    }

    #[test]
    fn the_count_closes_the_output() {
        let mut summary = Summary::default();
        summary.stage("fmt", None);
        summary.stage("clippy", Some("exit status 101".into()));
        summary.skip("uid 65534", "needs root");
        let text = summary.print();
        assert!(text.ends_with("\n1 passed, 1 failed, 1 skipped\n"), "{text}");
        assert!(
            text.contains("FAILED   clippy: exit status 101")
                && text.contains("skipped  uid 65534: needs root")
        );
    }
}

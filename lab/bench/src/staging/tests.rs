//! What cells there are, what their workflows say, and what makes no sense.

use clap::Parser;

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: Args,
}

fn args(words: &str) -> Args {
    Line::parse_from(std::iter::once("staging").chain(words.split_whitespace())).args
}

#[test]
fn the_study_s_sweeps_are_all_there() {
    let args = args("--places dram,files:/x,direct:/y --ranks 1,8,64 --total 4GB");
    let all = cells(&args, &args.ranks, 4_000_000_000);
    let of = |part: Part| {
        // Main memory lies beside the other two under each scaling, and under the movers alone.
        let is_counted =
            |c: &&Cell| c.part == part && (part == Part::Movers || c.place.to_string() != "dram");
        let cells: Vec<_> = all.iter().filter(is_counted).collect();
        cells.iter().map(|c| (c.writers, c.readers)).collect::<Vec<_>>()
    };
    let twice = |pairs: &[(usize, usize)]| pairs.iter().flat_map(|p| [*p, *p]).collect::<Vec<_>>();
    assert_eq!(of(Part::Strong), twice(&[(64, 1), (64, 8), (64, 64), (1, 64), (8, 64)]));
    assert_eq!(of(Part::Weak), twice(&[(1, 1), (8, 8), (64, 64)]));
    assert_eq!(of(Part::Movers), [(1, 0), (2, 0), (3, 0), (4, 0)]);
    for cell in &all {
        let wanted = if cell.part == Part::Weak { 8_000_000 * cell.writers as u64 } else { 4_000_000_000 };
        let short = wanted - cell.version_bytes();
        assert!(short < 100, "{cell}: {short} bytes short");
        assert!(cell.objects * cell.writers >= cell.readers, "{cell}: every reader gets something");
        assert_eq!(cell.moved_bytes_min() > 0, cell.part == Part::Movers, "{cell}");
    }
}

#[test]
fn every_cell_is_a_workflow_that_can_be_read() {
    let args = args("--places dram,files:/tmp,direct:/tmp,file:/tmp/a\"b --ranks 1,3 --lower /tmp");
    for cell in cells(&args, &args.ranks, 1 << 20).into_iter().chain(checks(&args, &args.ranks)) {
        let text = cell.workflow("staging-1-0");
        let file = std::path::Path::new("workflow.toml");
        let workflow = forebay_flow::Workflow::parse(file, std::path::Path::new("/"), &text)
            .unwrap_or_else(|e| panic!("{e:?}\n{text}"));
        assert_eq!(workflow.components.len(), if cell.readers == 0 { 1 } else { 2 });
        assert_eq!(workflow.channels.len(), 1);
    }
}

#[test]
fn places_are_tiers_or_files() {
    let place = |text: &str| text.parse::<Place>().unwrap();
    assert_eq!(place("dram"), Place::Tier(TierKind::Dram, None));
    assert_eq!(place("numa:1"), Place::Tier(TierKind::Numa(1), None));
    assert_eq!(place("files"), Place::Files(".".into()));
    for text in ["dram", "files:/x", "direct:/y", "file:.", "pmem:/mnt/p"] {
        assert_eq!(place(text).to_string(), text);
    }
    assert_eq!("dream".parse::<Place>().unwrap_err().kind(), Kind::Usage);
}

#[test]
fn sizes_are_scaled_to_the_machine_and_too_much_is_refused() {
    let defaults = args("--places dram --parts strong");
    assert!(total(&defaults, 2, &[1, 8]).unwrap() <= TOTAL_BYTES / 32);
    assert_eq!(total(&args("--places dram --total 1MiB"), 2, &[1]).unwrap(), 1 << 20);
    let too_much = total(&args("--places dram --total 100TB"), 2, &[1]).unwrap_err();
    assert_eq!(too_much.kind(), Kind::TierFull);
    // What goes down has to fit below, however little is written anywhere else.
    let below =
        total(&args("--places dram --parts movers --total 1MiB --steps 1000000000"), 2, &[1]).unwrap_err();
    assert_eq!(below.kind(), Kind::TierFull);
    assert!(below.to_string().contains("place=."), "{below}");
    assert!(total(&args("--places dram --parts strong --total 1MiB --steps 1000000000"), 2, &[1]).is_ok());
    let above = total(&args("--places file:. --parts movers --total 100TB"), 2, &[1]).unwrap_err();
    assert_eq!(above.kind(), Kind::TierFull);
    let too_wide = total(&args("--places dram --per-rank 10TB"), 2, &[64]).unwrap_err();
    assert_eq!(too_wide.kind(), Kind::TierFull);
    assert_eq!(ranks(&args(""), 2).unwrap(), [1, 2, 4, 8]);
    assert_eq!(ranks(&args(""), 96).unwrap(), [1, 2, 4, 8, 16, 32, 64]);
    for words in ["--ranks 0", "--movers 0", "--steps 0", "--steps 4", "--per-rank 1", "--total 1"] {
        let args = args(words);
        assert!(ranks(&args, 2).is_err() || check(&args).is_err(), "{words}");
    }
    check(&args("--steps 4 --parts strong,weak")).unwrap();
}

#[test]
fn parts_of_sorted_values() {
    let values: Vec<f64> = (0..11).map(f64::from).collect();
    assert_eq!([0.1, 0.5, 0.9].map(|p| measure::part(&values, p)), [1.0, 5.0, 9.0]);
    assert_eq!(measure::part(&[], 0.5), 0.0);
}

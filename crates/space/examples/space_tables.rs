//! Prints what documents repeat, from the code: every durable layout and every kind of error.
//!
//! `cargo xtask formats` compares it with docs/src. First layouts, as `NAME SIZE` and `  OFFSET BYTES FIELD`, then a
//! line `kinds`, then one line a kind: `NUMBER NAME EXIT`.

use forebay_space::Kind;

fn main() {
    let log = forebay_log::format::layouts().into_iter();
    let space = forebay_space::control_layouts().into_iter().chain([forebay_space::object_layout()]);
    let space = space.chain(forebay_space::cursor_layouts());
    for layout in log.chain(space) {
        println!("{} {}", layout.name, layout.size);
        for (name, offset, bytes) in layout.fields {
            println!("  {offset} {bytes} {name}");
        }
    }
    println!("kinds");
    for kind in Kind::ALL {
        println!("{} {} {}", kind.code(), kind.name(), kind.exit_code());
    }
}

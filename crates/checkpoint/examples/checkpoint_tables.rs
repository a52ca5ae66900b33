//! Prints the layouts of the durable records of checkpoints, for `cargo xtask formats`: `NAME SIZE`, then
//! `  OFFSET BYTES FIELD` a field.

fn main() {
    for layout in forebay_checkpoint::format::layouts() {
        println!("{} {}", layout.name, layout.size);
        for (name, offset, bytes) in layout.fields {
            println!("  {offset} {bytes} {name}");
        }
    }
}

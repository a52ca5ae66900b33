//! The machine-readable description of the profile: a JSON Schema made from the types themselves.

use super::Profile;

/// Name of the schema, as `--json` has it.
pub const NAME: &str = "forebay.profile/1";

/// The JSON Schema of a profile, as text with a final newline. `docs/` holds the same; a test compares the two.
pub fn json_schema() -> String {
    let mut schema = schemars::schema_for!(Profile);
    schema.insert("$id".into(), NAME.into());
    // A schema is plain JSON, which can always be written.
    serde_json::to_string_pretty(&schema).unwrap_or_default() + "\n"
}

//! One option: what is known of it, and the macro that makes structs and rows of the table.
//!
//! Guarantees: a field of [`crate::OpenOptions`] and of [`crate::ChannelOptions`] is there exactly if its row is. Not
//! here: the options (`table.rs`), and in which order sources count (`open.rs`).

use forebay_tier::Result;
use serde_json::Value as Json;

use crate::form::Form;
use crate::table::{ChannelOptions, OpenOptions};

/// Who says an option, and when it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Who this process is.
    Process,
    /// How a space is made, by the first writer that opens it; later ones must agree.
    Creation,
    /// Writers.
    Writer,
    /// Readers.
    Reader,
    /// Writers and readers.
    Both,
    /// Who opens a checkpoint.
    Checkpoint,
}

/// One option, of `open` or of another struct of options.
pub struct Row<O: 'static = OpenOptions> {
    /// Its name in C and Python, and in the reference.
    pub name: &'static str,
    /// Its key in the JSON of a channel; None: it is the process's, not the channel's.
    pub table: Option<&'static str>,
    /// What its value looks like.
    pub form: Form,
    /// What it is, one sentence.
    pub help: &'static str,
    /// What else there is to know; may be empty.
    pub more: &'static str,
    /// What counts when nothing is said, for people.
    pub default: &'static str,
    /// What the value may be, where its form does not say it all.
    pub range: &'static str,
    /// Page of the guide with more, as `spilling.md`; may be empty.
    pub see: &'static str,
    /// Who says it.
    pub role: Role,
    /// First version that knows it.
    pub since: &'static str,
    /// The variable of the environment that says it.
    pub variable: Option<&'static str>,
    /// Whether the channel table of a workflow file may say it.
    pub file: bool,
    /// Whether C and Python offer it.
    pub program: bool,
    /// Sets it from text.
    pub set: fn(&mut O, &str) -> Result<()>,
    /// Sets it from JSON, whose type must be the option's.
    pub set_json: fn(&mut O, &Json) -> Result<()>,
    /// Reads text and throws the value away.
    pub check: fn(&str) -> Result<()>,
    /// Sets it in the options of a channel.
    pub in_table: Option<fn(&mut ChannelOptions, &str) -> Result<()>>,
}

impl<O> Row<O> {
    /// What may be said as text, for people.
    pub fn values(&self) -> String {
        match self.range {
            "" => self.form.text(),
            range => range.to_owned(),
        }
    }

    /// Whether it is a keyword of `forebay.open`: there the mode is an argument of its own.
    pub fn is_keyword(&self) -> bool {
        self.program && self.name != "mode"
    }
}

/// `Option<T>`, or `T` for a field with a default of its own.
macro_rules! held {
    ($type:ty) => { Option<$type> };
    ($type:ty, $default:expr) => { $type };
}

/// What a field holds when nothing was said.
macro_rules! unsaid {
    () => {
        None
    };
    ($default:expr) => {
        $default
    };
}

/// Fills in what a nearer source left open: None, or at its default.
macro_rules! fill {
    ($options:expr, $field:ident, $said:expr) => {
        if $options.$field.is_none() {
            $options.$field = $said;
        }
    };
    ($options:expr, $field:ident, $said:expr, $default:expr) => {
        if let Some(said) = $said {
            if $options.$field == $default && !$options.said.contains(&stringify!($field)) {
                $options.$field = said;
            }
        }
    };
}

/// One row: what the entry says, over what follows from its field.
macro_rules! row {
    ($field:ident, $name:expr, $type:ty, $help:literal [$($more:literal)*] [$($attribute:ident: $value:expr),*]
     $table:expr, $in_table:expr) => {
        Row {
            $($attribute: $value,)*
            ..Row {
                name: $name,
                table: $table,
                form: <$type as Value>::FORM,
                help: $help.trim_ascii(),
                more: concat!($($more),*).trim_ascii(),
                default: "",
                range: "",
                see: "",
                role: Role::Process,
                since: "0.1.0",
                variable: None,
                file: false,
                program: true,
                set: |options, text| {
                    options.$field = <$type as Value>::from_text(text)?.into();
                    options.note_said(stringify!($field));
                    Ok(())
                },
                set_json: |options, json| {
                    options.$field = <$type as Value>::from_json(json)?.into();
                    options.note_said(stringify!($field));
                    Ok(())
                },
                check: |text| <$type as Value>::from_text(text).map(drop),
                in_table: $in_table,
            }
        }
    };
}

/// Makes a struct of options that are one program's alone, with its rows: entries as those of [`options`], each with
/// the name of its field, its own, its type and its default. What stands in `beside` is no option.
macro_rules! own_options {
    (
        $(#[doc = $about:literal])*
        $struct:ident, $rows:ident, $role:expr;
        options { $(
            #[doc = $help:literal] $(#[doc = $more:literal])*
            $field:ident, $name:ident: $type:ty $(= $default:expr)?; { $($attribute:ident: $value:expr),* $(,)? }
        )* }
        beside { $( $(#[doc = $other_help:literal])* $other:ident: $other_type:ty = $other_default:expr; )* }
    ) => {
        $(#[doc = $about])*
        #[derive(Clone, Debug)]
        pub struct $struct {
            $(#[doc = $help] $(#[doc = $more])* pub $field: held!($type $(, $default)?),)*
            $($(#[doc = $other_help])* pub $other: $other_type,)*
        }

        impl $struct {
            /// No other source says these.
            fn note_said(&mut self, _field: &'static str) {}
        }

        impl Default for $struct {
            fn default() -> $struct {
                $struct { $($field: unsaid!($($default)?),)* $($other: $other_default,)* }
            }
        }

        /// Every option, in the order of the table.
        pub const $rows: &[Row<$struct>] = &[
            $(row!(
                $field, stringify!($name), $type, $help [$($more)*] [role: $role $(, $attribute: $value)*] None, None
            ),)*
        ];
    };
}

/// Makes [`OpenOptions`], [`ChannelOptions`] and `OPTIONS` of the table. An entry is its help as doc comment (the first
/// line stands in lists), the name of its field, for a channel's option its key in tables, its type, and the
/// [`Row`]'s fields that differ from the usual. A field with `= default` holds its type, one without an `Option`.
macro_rules! options {
    (
        process { $(
            #[doc = $phelp:literal] $(#[doc = $pmore:literal])*
            $pfield:ident: $ptype:ty $(= $pdefault:expr)?; { $($pattribute:ident: $pvalue:expr),* $(,)? }
        )* }
        channel { $(
            #[doc = $help:literal] $(#[doc = $more:literal])*
            $field:ident, $key:ident: $type:ty $(= $default:expr)?; { $($attribute:ident: $value:expr),* $(,)? }
        )* }
    ) => {
        /// How to open a space, for writing or reading. `OpenOptions::default()` is right for most programs.
        #[derive(Clone, Debug, PartialEq)]
        pub struct OpenOptions {
            $(#[doc = $phelp] $(#[doc = $pmore])* pub $pfield: held!($ptype $(, $pdefault)?),)*
            $(#[doc = $help] $(#[doc = $more])* pub $field: held!($type $(, $default)?),)*
            /// Fields that were set by [`Row::set`] or [`Row::set_json`]: they count also at their default.
            pub said: Vec<&'static str>,
        }

        impl OpenOptions {
            fn note_said(&mut self, field: &'static str) {
                self.said.push(field);
            }
        }

        impl Default for OpenOptions {
            fn default() -> OpenOptions {
                OpenOptions {
                    $($pfield: unsaid!($($pdefault)?),)*
                    $($field: unsaid!($($default)?),)*
                    said: Vec::new(),
                }
            }
        }

        /// The options of one channel, as a workflow's channel table or the environment gives them; each may be
        /// missing.
        ///
        /// Written as JSON into `FOREBAY_CHANNEL_<NAME>` ([`crate::environment::channel_variable`]) by the process that
        /// starts the ranks. Sizes are read as text with a unit or as a number of bytes, timeouts as seconds, readers
        /// as `"analysis:3,viz:1"` or as a table `{"analysis": 3, "viz": 1}`.
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct ChannelOptions {
            $(
                #[doc = $help] $(#[doc = $more])*
                #[serde(skip_serializing_if = "Option::is_none", with = "crate::form::optional")]
                pub $key: Option<$type>,
            )*
        }

        impl ChannelOptions {
            /// Every key, for "did you mean".
            pub const KEYS: &'static [&'static str] = &[$(stringify!($key)),*];

            /// Fills in what `options` does not say.
            pub(crate) fn fill(self, options: &mut OpenOptions) {
                $(fill!(options, $field, self.$key $(, $default)?);)*
            }

            /// Takes the value of `key` from a table that is being read, if that is a key of these.
            ///
            /// # Errors
            /// Those of the format.
            pub fn take<'de, A: MapAccess<'de>>(&mut self, key: &str, from: &mut A) -> Result<bool, A::Error> {
                $(
                    if key == stringify!($key) {
                        self.$key = Some(from.next_value::<Said<$type>>()?.0);
                        return Ok(true);
                    }
                )*
                Ok(false)
            }
        }

        /// Fields that have a default of their own.
        #[cfg(test)]
        pub(crate) const WITH_DEFAULT: &[&str] = &[
            $($({ let _ = stringify!($pdefault); stringify!($pfield) },)?)*
            $($({ let _ = stringify!($default); stringify!($field) },)?)*
        ];

        /// Every option, in the order of the table.
        pub const OPTIONS: &[Row] = &[
            $(row!(
                $pfield, stringify!($pfield), $ptype, $phelp [$($pmore)*] [$($pattribute: $pvalue),*] None, None
            ),)*
            $(row!(
                $field, stringify!($key), $type, $help [$($more)*] [$($attribute: $value),*] Some(stringify!($key)),
                Some(|table, text| {
                    table.$key = Some(<$type as Value>::from_text(text)?);
                    Ok(())
                })
            ),)*
        ];
    };
}

pub(crate) use {fill, held, options, own_options, row, unsaid};

//! Commands that run a program on a node, such as `ssh {node}`, as users write them.
//!
//! Guarantees: a word that a shell on the other side would read otherwise is refused unless the template says where a
//! shell is. Not here: running them.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::str::FromStr;

use forebay_tier::{Error, Kind, Result};

const NODE: &str = "{node}";
const COMMAND: &str = "{command}";

/// A command that runs a program on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    words: Vec<String>,
}

impl FromStr for Template {
    type Err = Error;

    fn from_str(text: &str) -> Result<Template> {
        let wrong = |what: &str| {
            Error::new(Kind::Usage, format!("`{text}` {what}"))
                .hint("for example `ssh {node}`; {node} stands for the name of the node")
        };
        let words = shlex::split(text).ok_or_else(|| wrong("has an open quotation mark"))?;
        match words.iter().any(|word| word.contains(NODE)) {
            true => Ok(Template { words }),
            false => Err(wrong("does not contain {node}")),
        }
    }
}

impl Template {
    /// The command that runs `program` on a node, with these variables unless the template sets them: then they are
    /// those of the node.
    ///
    /// # Errors
    /// [`Kind::Usage`]: a word has to be quoted for a shell, and the template does not say where one is.
    pub fn on_node(
        &self,
        node: &str,
        variables: &[(&str, OsString)],
        program: &Path,
        arguments: &[OsString],
    ) -> Result<Command> {
        let is_set = |name: &str| self.words.iter().any(|word| word.contains(&format!("{name}=")));
        let kept = variables.iter().filter(|(name, _)| !is_set(name));
        let kept: Vec<OsString> = kept.map(|(name, value)| variable(name, value)).collect();
        let env = (!kept.is_empty()).then(|| "env".into());
        let all = env.into_iter().chain(kept).chain([program.into()]).chain(arguments.iter().cloned());
        let text = |word: OsString| {
            word.into_string().map_err(|word| {
                Error::new(Kind::Usage, format!("{} is not UTF-8", word.to_string_lossy()))
                    .hint("start the program on each node by a script")
            })
        };
        let all: Vec<String> = all.map(text).collect::<Result<_>>()?;
        // Only those of the template: what the program is told stays as it is.
        let mut words: Vec<String> = self.words.iter().map(|word| word.replace(NODE, node)).collect();
        if words.iter().any(|word| word.contains(COMMAND)) {
            let line = shlex::try_join(all.iter().map(String::as_str))
                .map_err(|e| Error::new(Kind::Usage, format!("cannot be a command: {e}")))?;
            words.iter_mut().for_each(|word| *word = word.replace(COMMAND, &line));
        } else if let Some(word) = all.iter().find(|word| !is_plain(word)) {
            return Err(Error::new(Kind::Usage, format!("{word:?} has to be quoted for a shell"))
                .hint("use {command}, which is quoted: `ssh {node} {command}`"));
        } else {
            words.extend(all);
        }
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        Ok(command)
    }
}

/// Whether a shell and no shell read the same.
fn is_plain(word: &str) -> bool {
    !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c))
}

fn variable(name: &str, value: &OsString) -> OsString {
    let mut word = OsString::from(format!("{name}="));
    word.push(value);
    word
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(template: &str, arguments: &[&str]) -> Result<Vec<String>> {
        let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
        let command =
            template.parse::<Template>()?.on_node("n1", &[], Path::new("/bin/agent"), &arguments)?;
        let all = [command.get_program()].into_iter().chain(command.get_args());
        Ok(all.map(|word| word.to_string_lossy().into_owned()).collect())
    }

    #[test]
    fn the_words_of_a_program_follow_those_of_the_template() {
        assert_eq!(words("ssh -x {node}", &["start"]).unwrap(), ["ssh", "-x", "n1", "/bin/agent", "start"]);
        // What the template sets for a node is not set again.
        let set = [("FOREBAY_DIR", "/x".into()), ("FOREBAY_RUN", "/y".into())];
        let template: Template = "on FOREBAY_DIR=/a {node}".parse().unwrap();
        let command = template.on_node("n1", &set, Path::new("/bin/agent"), &[]).unwrap();
        let all: Vec<_> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
        assert_eq!(all, ["FOREBAY_DIR=/a", "n1", "env", "FOREBAY_RUN=/y", "/bin/agent"]);
        assert_eq!(words("on '{node} it'", &[]).unwrap(), ["on", "n1 it", "/bin/agent"]);
        assert_eq!(words("on {node} {command}", &["{node}"]).unwrap(), ["on", "n1", "/bin/agent '{node}'"]);
        for wrong in ["ssh n1", "ssh '{node}", ""] {
            assert_eq!(words(wrong, &[]).unwrap_err().kind(), Kind::Usage, "{wrong}");
        }
    }

    #[test]
    fn words_for_a_shell_are_quoted_where_it_is_and_nowhere_else() {
        assert_eq!(words("ssh {node}", &["a b"]).unwrap_err().kind(), Kind::Usage);
        let quoted = words("ssh {node} {command}", &["a b", "c"]).unwrap();
        let last = quoted.last().unwrap();
        assert!(last.ends_with("/bin/agent 'a b' c"), "{last}");
    }
}

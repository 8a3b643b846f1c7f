//! Writes docs/configuration.md from the comments of `node/v1/config.proto`: `bazel run //proto:reference`. A test of
//! this program compares the file.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::{env, fs};

use prost::Message;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet};

const FILE: &str = "docs/configuration.md";

fn main() -> ExitCode {
    match write() {
        Ok(path) => {
            println!("{} is written", path.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: cannot write {FILE}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn write() -> Result<PathBuf, Box<dyn Error>> {
    // `bazel run` says where the source tree is; without Bazel one starts it there.
    let root = env::var_os("BUILD_WORKSPACE_DIRECTORY").map_or_else(|| PathBuf::from("."), PathBuf::from);
    let path = root.join(FILE);
    fs::write(&path, reference(proto::node::DESCRIPTORS_WITH_COMMENTS)?)?;
    Ok(path)
}

const HEAD: &str = "\
# Configuration of a node

<!-- Written by `bazel run //proto:reference` from proto/node/v1/config.proto: change that file, not this one. -->

A node reads its configuration once, at its boot, as JSON: from QEMU's fw_cfg under the name `opt/dev.granary/config`, else
from the file `granary.json` in the root of its EFI system partition. Without either, or if the file is empty, the node
uses the defaults. It checks the whole configuration before it does anything. If there are problems, it prints all of
them on the console, each with its field and the remedy, and the machine ends as `granary.failure` says.

```json
{
  \"nodeName\": \"granary-1\",
  \"network\": {
    \"static\": {\"address\": \"192.0.2.10/24\", \"gateway\": \"192.0.2.1\"},
    \"nameServers\": [\"192.0.2.53\"]
  },
  \"storage\": {\"keepFree\": \"10GiB\"}
}
```

The kernel's command line has only what is needed before the configuration can be read:

| word | meaning |
|---|---|
| `granary.failure=poweroff` or `reboot` | What the machine does when it cannot start, until the configuration with its `onFailure` is read. Default: `poweroff`. |
| `granary.log=LEVEL` | Least severe level of the log lines of etcd, kubelet and the other programs on the console, and of those among the recent warnings on the status page: `error`, `warn`, `info`, `debug`, `trace`. The node's own program is not affected. Default: `error`. |

If one of them occurs more than once, the last one counts. `granary.system` is on the command line of a direct boot, and
selects its system; a disk image does not start with it. The node does not start with any other word that begins with
`granary.`.
";

type Comments<'file> = HashMap<&'file [i32], String>;

/// Numbers of fields in `descriptor.proto`, the components of the paths of comments.
const MESSAGES: i32 = 4;
const ENUMS: i32 = 5;
const FIELDS: i32 = 2;
const VALUES: i32 = 2;
const ONEOFS: i32 = 8;

fn reference(descriptors: &[u8]) -> Result<String, prost::DecodeError> {
    let files = FileDescriptorSet::decode(descriptors)?;
    let mut text = HEAD.to_owned();
    for file in &files.file {
        let comments = comments(file);
        for (message, at) in file.message_type.iter().zip(0..) {
            write_message(&mut text, message, &[MESSAGES, at], &comments);
        }
        for (kind, at) in file.enum_type.iter().zip(0..) {
            write_enum(&mut text, kind, &[ENUMS, at], &comments);
        }
    }
    Ok(text)
}

/// Each on one line, as cells of a table want it.
fn comments(file: &FileDescriptorProto) -> Comments<'_> {
    let locations = file.source_code_info.iter().flat_map(|info| &info.location);
    let commented =
        locations.filter_map(|location| Some((location.path.as_slice(), location.leading_comments.as_deref()?)));
    commented.map(|(path, text)| (path, text.split_whitespace().collect::<Vec<_>>().join(" "))).collect()
}

fn comment<'a>(comments: &'a Comments<'_>, path: &[i32]) -> &'a str {
    comments.get(path).map_or("", String::as_str)
}

fn below(path: &[i32], more: [i32; 2]) -> Vec<i32> {
    path.iter().copied().chain(more).collect()
}

fn write_message(text: &mut String, message: &DescriptorProto, path: &[i32], comments: &Comments<'_>) {
    text.push_str(&format!("\n## {}\n\n{}\n", message.name(), comment(comments, path)));
    if message.field.is_empty() {
        return;
    }
    text.push_str("\n| field | value | meaning |\n|---|---|---|\n");
    let mut chosen = None;
    for (field, at) in message.field.iter().zip(0..) {
        // `optional` is a oneof with one member.
        let choice = field.oneof_index.filter(|_| !field.proto3_optional());
        if let Some(choice) = choice.filter(|choice| chosen != Some(*choice)) {
            let which = comment(comments, &below(path, [ONEOFS, choice]));
            text.push_str(&format!(
                "| *{}, one of:* | {} | {which} |\n",
                name(message, choice),
                members(message, choice)
            ));
        }
        chosen = choice;
        let meaning = comment(comments, &below(path, [FIELDS, at]));
        text.push_str(&format!("| `{}` | {} | {meaning} |\n", field.json_name(), value(field)));
    }
}

fn name(message: &DescriptorProto, choice: i32) -> &str {
    let choice = usize::try_from(choice).ok().and_then(|choice| message.oneof_decl.get(choice));
    choice.map_or("", |choice| choice.name())
}

fn members(message: &DescriptorProto, choice: i32) -> String {
    let members = message.field.iter().filter(|field| field.oneof_index == Some(choice));
    members.map(|field| format!("`{}`", field.json_name())).collect::<Vec<_>>().join(", ")
}

fn value(field: &FieldDescriptorProto) -> String {
    let name = field.type_name().rsplit('.').next().unwrap_or_default();
    let one = match field.r#type() {
        Type::Message => format!("object, [{name}](#{})", name.to_lowercase()),
        Type::Enum => format!("word, [{name}](#{})", name.to_lowercase()),
        Type::String => "text".to_owned(),
        Type::Bool => "`true` or `false`".to_owned(),
        _ => "number".to_owned(),
    };
    if field.label() == Label::Repeated { format!("list of {one}s") } else { one }
}

fn write_enum(text: &mut String, kind: &EnumDescriptorProto, path: &[i32], comments: &Comments<'_>) {
    text.push_str(&format!("\n## {}\n\n{}\n\n| word | meaning |\n|---|---|\n", kind.name(), comment(comments, path)));
    for (word, at) in kind.value.iter().zip(0..).filter(|(word, _)| word.number() != 0) {
        text.push_str(&format!("| `{}` | {} |\n", word.name(), comment(comments, &below(path, [VALUES, at]))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_is_what_the_comments_say() {
        let written = include_str!("../../../docs/configuration.md");
        let reference = reference(proto::node::DESCRIPTORS_WITH_COMMENTS).unwrap();
        assert!(written == reference, "docs/configuration.md is old: bazel run //proto:reference");
    }

    #[test]
    fn everything_has_a_comment() {
        let files = FileDescriptorSet::decode(proto::node::DESCRIPTORS_WITH_COMMENTS).unwrap();
        for file in &files.file {
            let comments = comments(file);
            for (message, at) in file.message_type.iter().zip(0..) {
                assert!(!comment(&comments, &[MESSAGES, at]).is_empty(), "{}", message.name());
                for (field, number) in message.field.iter().zip(0..) {
                    let text = comment(&comments, &[MESSAGES, at, FIELDS, number]);
                    assert!(!text.is_empty(), "{}.{}", message.name(), field.name());
                    assert!(!text.contains('|'), "a cell of the table ends: {text}");
                }
            }
        }
    }
}

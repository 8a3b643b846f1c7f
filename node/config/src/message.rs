//! Converts JSON to the message by its descriptors, and collects all problems.
//!
//! Generated readers (`pbjson`) and that of `prost-reflect` stop at the first problem and do not name its field. This
//! one supports only the kinds of fields that `config.proto` has.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use prost_reflect::{DescriptorPool, DynamicMessage, EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor, Value};
use proto::node;

use crate::json::Json;
use crate::problem::{FieldPath, ParseError, Problem, Violation};

/// `None` if the descriptors of the build are invalid.
pub(crate) static CONFIG: LazyLock<Option<MessageDescriptor>> =
    LazyLock::new(|| DescriptorPool::decode(node::DESCRIPTORS).ok()?.get_message_by_name("granary.node.v1.Config"));

/// Returns the message without the fields that have problems, and these problems.
pub(crate) fn read(json: &Json) -> Result<(node::Config, Vec<Problem>), ParseError> {
    let config = CONFIG.as_ref().ok_or(ParseError::Build)?;
    let mut problems = Vec::new();
    let read = match message(config, json, &FieldPath::default(), &mut problems) {
        Some(message) => message.transcode_to().map_err(|_| ParseError::Build)?,
        None => node::Config::default(),
    };
    Ok((read, problems))
}

fn message(
    kind: &MessageDescriptor,
    json: &Json,
    path: &FieldPath,
    problems: &mut Vec<Problem>,
) -> Option<DynamicMessage> {
    let Json::Object(fields) = json else {
        problems.push(path.problem(Violation::Kind { wanted: "an object", found: json.kind() }));
        return None;
    };
    let mut message = DynamicMessage::new(kind.clone());
    // Fields and oneofs that are set, with the name of the field.
    let mut set: BTreeMap<String, String> = BTreeMap::new();
    for (name, json) in fields {
        let here = path.field(name);
        let Some(field) = kind.get_field_by_json_name(name).or_else(|| kind.get_field_by_name(name)) else {
            let known = kind.fields().map(|field| field.json_name().to_owned()).collect();
            problems.push(here.problem(Violation::UnknownField { known }));
            continue;
        };
        if set.insert(field.full_name().to_owned(), name.clone()).is_some() {
            problems.push(here.problem(Violation::Twice));
            continue;
        }
        // Null is the same as a missing field.
        if *json == Json::Null {
            continue;
        }
        if let Some(choice) = field.containing_oneof().filter(|choice| !choice.is_synthetic())
            && let Some(other) = set.insert(choice.full_name().to_owned(), name.clone())
        {
            problems.push(here.problem(Violation::Excludes { other }));
            continue;
        }
        let value = if field.is_list() {
            list(&field, json, &here, problems)
        } else {
            single(&field.kind(), json, &here, problems)
        };
        if let Some(value) = value {
            message.set_field(&field, value);
        }
    }
    Some(message)
}

fn list(field: &FieldDescriptor, json: &Json, path: &FieldPath, problems: &mut Vec<Problem>) -> Option<Value> {
    let Json::List(items) = json else {
        problems.push(path.problem(Violation::Kind { wanted: "an array", found: json.kind() }));
        return None;
    };
    let each = items.iter().enumerate();
    let values: Vec<_> =
        each.filter_map(|(index, item)| single(&field.kind(), item, &path.item(index), problems)).collect();
    // Without an invalid item, later problems would have wrong indexes.
    (values.len() == items.len()).then_some(Value::List(values))
}

/// A test checks that `config.proto` has no other kinds of fields.
fn single(kind: &Kind, json: &Json, path: &FieldPath, problems: &mut Vec<Problem>) -> Option<Value> {
    let wanted = match (kind, json) {
        (Kind::Message(kind), json) => return message(kind, json, path, problems).map(Value::Message),
        (Kind::String, Json::Text(text)) => return Some(Value::String(text.clone())),
        (Kind::String, _) => "a string",
        (Kind::Uint32, Json::Count(number)) if u32::try_from(*number).is_ok() => {
            return u32::try_from(*number).ok().map(Value::U32);
        }
        // JSON of Protocol Buffers may have numbers in quotes.
        (Kind::Uint32, Json::Text(text)) if text.parse::<u32>().is_ok() => return text.parse().ok().map(Value::U32),
        (Kind::Uint32, _) => "an integer from 0 to 4294967295",
        (Kind::Enum(kind), Json::Text(text)) => return word(kind, text, path, problems),
        (Kind::Enum(_), _) => "a string",
        _ => "of a kind that this release cannot read",
    };
    problems.push(path.problem(Violation::Kind { wanted, found: json.kind() }));
    None
}

fn word(kind: &EnumDescriptor, text: &str, path: &FieldPath, problems: &mut Vec<Problem>) -> Option<Value> {
    // Zero means unspecified.
    let words: Vec<_> = kind.values().filter(|word| word.number() != 0).collect();
    if let Some(found) = words.iter().find(|word| word.name() == text) {
        return Some(Value::EnumNumber(found.number()));
    }
    let known = words.iter().map(|word| word.name().to_owned()).collect();
    problems.push(path.problem(Violation::Word { found: text.to_owned(), known }));
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kinds_of_all_fields_are_supported() {
        let config = CONFIG.as_ref().expect("descriptors of the build");
        for message in config.parent_pool().all_messages() {
            for field in message.fields() {
                assert!(!field.is_map(), "{}", field.full_name());
                assert!(
                    matches!(field.kind(), Kind::Message(_) | Kind::String | Kind::Uint32 | Kind::Enum(_)),
                    "{}",
                    field.full_name()
                );
            }
        }
    }

    #[test]
    fn names_of_the_proto_file_are_read_too() {
        for text in [r#"{"nodeName": "a"}"#, r#"{"node_name": "a"}"#] {
            let (config, problems) = read(&serde_json::from_str(text).unwrap()).unwrap();
            assert_eq!((config.node_name.as_deref(), problems), (Some("a"), vec![]));
        }
    }
}

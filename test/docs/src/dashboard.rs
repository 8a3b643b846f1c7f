//! Dashboards of Grafana.

use serde_json::Value;

pub fn expressions(dashboard: &str) -> Result<Vec<String>, serde_json::Error> {
    let mut found = Vec::new();
    collect(&serde_json::from_str(dashboard)?, &mut found);
    Ok(found)
}

fn collect(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::String(text) if matches!(name.as_str(), "expr" | "query" | "definition") => {
                        found.push(text.clone());
                    }
                    _ => collect(value, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect(item, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_of_panels_and_variables_are_found_at_any_depth() {
        let dashboard = r#"{"title": "up", "panels": [{"panels": [{"targets": [{"expr": "a"}]}]}],
            "templating": {"list": [{"query": {"query": "b"}, "definition": "c"}]}}"#;
        let mut found = expressions(dashboard).unwrap();
        found.sort();
        assert_eq!(found, ["a", "b", "c"]);
    }
}

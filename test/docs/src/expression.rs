//! Metrics in PromQL expressions.

const PREFIX: &str = "granary_";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Name as written in the expression, including the suffix of a histogram's series.
    pub name: String,
    /// Labels in the braces after the name.
    pub labels: Vec<String>,
}

/// Error for an unmatched bracket or quotation mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unbalanced;

pub fn metrics_of(expression: &str) -> Result<Vec<Metric>, Unbalanced> {
    let mut found: Vec<Metric> = Vec::new();
    let mut open = Vec::new();
    // Whether the parser is inside the braces of a granary metric.
    let mut matchers = false;
    let mut rest = expression;
    while let Some(first) = rest.chars().next() {
        let length = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        if length > 0 {
            let (word, after) = rest.split_at(length);
            rest = after;
            if matchers {
                found.last_mut().ok_or(Unbalanced)?.labels.push(word.to_owned());
            } else if word.starts_with(PREFIX) {
                found.push(Metric { name: word.to_owned(), labels: Vec::new() });
                matchers = rest.starts_with('{');
            }
            continue;
        }
        rest = &rest[first.len_utf8()..];
        match first {
            '"' | '\'' | '`' => rest = rest.split_once(first).ok_or(Unbalanced)?.1,
            '(' => open.push(')'),
            '[' => open.push(']'),
            '{' => open.push('}'),
            ')' | ']' | '}' => {
                if open.pop() != Some(first) {
                    return Err(Unbalanced);
                }
                matchers = false;
            }
            _ => {}
        }
    }
    if open.is_empty() { Ok(found) } else { Err(Unbalanced) }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | ':')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metric(name: &str, labels: &[&str]) -> Metric {
        Metric { name: name.into(), labels: labels.iter().map(|&label| label.into()).collect() }
    }

    #[test]
    fn metrics_are_found_with_the_labels_they_are_chosen_by() {
        let expression = "sum by (mode) (granary_a{mode=\"x y\", kind=~\"a|b\"}) / rate(granary_b_total[5m]) > 0.5";
        assert_eq!(
            metrics_of(expression),
            Ok(vec![metric("granary_a", &["mode", "kind"]), metric("granary_b_total", &[])])
        );
    }

    #[test]
    fn other_metrics_are_skipped() {
        assert_eq!(metrics_of("up{job=\"granary_x\"} == 0 and on (instance) time() > 86400"), Ok(vec![]));
    }

    #[test]
    fn what_cannot_be_right_is_refused() {
        for expression in ["sum(granary_a", "granary_a)", "granary_a{mode=\"x}", "(granary_a]"] {
            assert_eq!(metrics_of(expression), Err(Unbalanced), "{expression}");
        }
    }
}

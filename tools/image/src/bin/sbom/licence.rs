//! SPDX licence expressions, and detection of licence texts.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// SPDX names that are in use. Other names are errors, so that a maintainer reviews them.
const KNOWN: [&str; 18] = [
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "MPL-2.0",
    "NCSA",
    "NOASSERTION",
    "OpenSSL",
    "Unicode-3.0",
    "Unicode-DFS-2016",
    "Unlicense",
    "Zlib",
];
const EXCEPTIONS: [&str; 1] = ["LLVM-exception"];

/// An SPDX licence expression: names with AND, OR, WITH and parentheses.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Expression(String);

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ParseExpressionError {
    #[error("licence `{0}` is unknown; review it and add it to KNOWN in tools/image/src/bin/sbom/licence.rs")]
    Unknown(String),
    #[error("`{0}` is not an SPDX licence expression")]
    Form(String),
}

impl Expression {
    /// Creates a `LicenseRef` for a text without an SPDX name. `of` may contain any characters.
    pub(crate) fn reference(of: &str) -> Self {
        Self(format!("LicenseRef-{}", identifier(of)))
    }

    pub(crate) fn all(expressions: impl IntoIterator<Item = Self>) -> Option<Self> {
        let parts: BTreeSet<String> = expressions.into_iter().flat_map(|expression| expression.parts()).collect();
        let alone = parts.len() == 1;
        let parts =
            parts.into_iter().map(|text| if text.contains(" OR ") && !alone { format!("({text})") } else { text });
        let text = parts.collect::<Vec<_>>().join(" AND ");
        (!text.is_empty()).then_some(Self(text))
    }

    /// The operands of the outermost AND, without their parentheses.
    fn parts(&self) -> Vec<String> {
        let (mut parts, mut part) = (Vec::new(), Vec::new());
        let mut depth = 0_usize;
        for word in self.0.split(' ') {
            match (depth, word) {
                (0, "OR") => return vec![self.0.clone()],
                (0, "AND") => parts.push(std::mem::take(&mut part)),
                _ => part.push(word),
            }
            depth += word.matches('(').count();
            depth = depth.saturating_sub(word.matches(')').count());
        }
        parts.push(part);
        let whole = |words: Vec<&str>| {
            let text = words.join(" ");
            text.strip_prefix('(').and_then(|text| text.strip_suffix(')')).unwrap_or(&text).to_owned()
        };
        parts.into_iter().map(whole).collect()
    }

    /// Whether the expression is Apache-2.0 or offers it as a choice.
    pub(crate) fn allows_apache(&self) -> bool {
        !self.0.contains(" AND ") && self.0.split(" OR ").any(|name| name.trim_matches(['(', ')']) == "Apache-2.0")
    }
}

impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Expression {
    type Err = ParseExpressionError;

    /// Accepts a slash, which old manifests use, as OR.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let spaced = text.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
        let words: Vec<&str> = spaced.split_whitespace().collect();
        let rest = sum(&words).map_err(|error| error.unwrap_or_else(|| ParseExpressionError::Form(text.to_owned())))?;
        if !rest.is_empty() {
            return Err(ParseExpressionError::Form(text.to_owned()));
        }
        Ok(Self(words.join(" ").replace("( ", "(").replace(" )", ")")))
    }
}

/// Parses operands and operators, and returns the remaining words. The error `None` is a syntax error.
fn sum<'a>(words: &'a [&'a str]) -> Result<&'a [&'a str], Option<ParseExpressionError>> {
    let mut rest = operand(words)?;
    while let ["AND" | "OR", behind @ ..] = rest {
        rest = operand(behind)?;
    }
    Ok(rest)
}

fn operand<'a>(words: &'a [&'a str]) -> Result<&'a [&'a str], Option<ParseExpressionError>> {
    let known = |name: &str| KNOWN.contains(&name) || name.starts_with("LicenseRef-");
    match words {
        ["(", inner @ ..] => match sum(inner)? {
            [")", rest @ ..] => Ok(rest),
            _ => Err(None),
        },
        [")" | "AND" | "OR" | "WITH", ..] | [] => Err(None),
        [name, "WITH", exception, rest @ ..] if known(name) && EXCEPTIONS.contains(exception) => Ok(rest),
        [_, "WITH", exception, ..] => Err(Some(ParseExpressionError::Unknown((*exception).to_owned()))),
        [name, rest @ ..] if known(name) => Ok(rest),
        [name, ..] => Err(Some(ParseExpressionError::Unknown((*name).to_owned()))),
    }
}

/// Replaces the characters that SPDX identifiers must not contain.
pub(crate) fn identifier(name: &str) -> String {
    name.chars().map(|letter| if letter.is_ascii_alphanumeric() || letter == '.' { letter } else { '-' }).collect()
}

const PHRASES: [(&str, &str); 9] = [
    ("apache license version 2.0", "Apache-2.0"),
    ("apache license, version 2.0", "Apache-2.0"),
    ("permission is hereby granted, free of charge, to any person obtaining a copy", "MIT"),
    ("permission to use, copy, modify, and distribute this software for any purpose with or without fee", "ISC"),
    ("permission to use, copy, modify, and/or distribute this software for any purpose with or without fee", "ISC"),
    ("mozilla public license, version 2.0", "MPL-2.0"),
    ("mozilla public license version 2.0", "MPL-2.0"),
    ("this is free and unencumbered software released into the public domain", "Unlicense"),
    ("this software is provided 'as-is', without any express or implied warranty", "Zlib"),
];
const BSD: &str = "redistribution and use in source and binary forms";
const BSD_3: [&str; 2] = ["neither the name", "names of its contributors may not be used"];

/// Licences whose texts are in a file, or `None` if no text is recognized.
pub(crate) fn in_text(text: &str) -> Option<Expression> {
    let letters = text.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase();
    let mut found: BTreeSet<&str> =
        PHRASES.iter().filter(|(phrase, _)| letters.contains(phrase)).map(|(_, name)| *name).collect();
    if letters.contains(BSD) {
        let three = BSD_3.iter().any(|phrase| letters.contains(phrase));
        found.insert(if three { "BSD-3-Clause" } else { "BSD-2-Clause" });
    }
    Expression::all(found.into_iter().map(|name| Expression(name.to_owned())))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(text: &str) -> Result<String, ParseExpressionError> {
        text.parse::<Expression>().map(|expression| expression.to_string())
    }

    #[test]
    fn spdx_expressions_are_parsed() {
        assert_eq!(parsed("MIT/Apache-2.0").unwrap(), "MIT OR Apache-2.0");
        assert_eq!(parsed("(MIT OR Apache-2.0) AND Unicode-3.0").unwrap(), "(MIT OR Apache-2.0) AND Unicode-3.0");
        assert_eq!(parsed("Apache-2.0 WITH LLVM-exception OR MIT").unwrap(), "Apache-2.0 WITH LLVM-exception OR MIT");
        assert_eq!(parsed("LicenseRef-libc6").unwrap(), "LicenseRef-libc6");
    }

    #[test]
    fn an_unknown_name_is_reported() {
        assert_eq!(parsed("MIT OR GPL-9.0"), Err(ParseExpressionError::Unknown("GPL-9.0".into())));
        assert_eq!(parsed("MIT WITH much"), Err(ParseExpressionError::Unknown("much".into())));
        for text in ["", "MIT OR", "(MIT", "MIT)", "MIT MIT", "AND MIT"] {
            assert_eq!(parsed(text), Err(ParseExpressionError::Form(text.into())), "{text}");
        }
    }

    #[test]
    fn combining_keeps_choices_in_parentheses() {
        let all = |texts: &[&str]| Expression::all(texts.iter().map(|text| text.parse().unwrap())).unwrap().to_string();
        assert_eq!(all(&["MIT", "ISC OR MIT", "MIT"]), "(ISC OR MIT) AND MIT");
        assert_eq!(all(&["ISC OR MIT"]), "ISC OR MIT");
        assert_eq!(all(&["(ISC OR MIT) AND Zlib", "Zlib AND MIT", "ISC OR MIT"]), "(ISC OR MIT) AND MIT AND Zlib");
        assert_eq!(all(&["Zlib OR MIT AND ISC", "MIT"]), "MIT AND (Zlib OR MIT AND ISC)");
        assert_eq!(Expression::all([]), None);
    }

    #[test]
    fn apache_is_detected_as_a_choice() {
        let allows = |text: &str| text.parse::<Expression>().unwrap().allows_apache();
        assert!(allows("MIT OR Apache-2.0") && allows("Apache-2.0"));
        assert!(!allows("Apache-2.0 AND ISC") && !allows("MIT") && !allows("Apache-2.0 WITH LLVM-exception"));
    }

    #[test]
    fn licence_texts_are_recognized() {
        let known = |text: &str| in_text(text).map(|expression| expression.to_string());
        let mit = "Permission is hereby granted, free\n of charge, to any person obtaining a copy of this";
        let bsd = "Redistribution and use in source and binary forms, with or without modification";
        assert_eq!(known(mit).as_deref(), Some("MIT"));
        assert_eq!(known(bsd).as_deref(), Some("BSD-2-Clause"));
        assert_eq!(known(&format!("{bsd} … Neither the name of")).as_deref(), Some("BSD-3-Clause"));
        assert_eq!(
            known(&format!("Apache License\n  Version 2.0, January 2004 {mit}")).as_deref(),
            Some("Apache-2.0 AND MIT")
        );
        assert_eq!(known("all rights reserved"), None);
    }

    proptest! {
        #[test]
        fn parsing_is_idempotent(text in "(\\(|MIT|ISC|AND|OR|WITH|LLVM-exception|\\)| ){0,12}") {
            if let Ok(expression) = text.parse::<Expression>() {
                prop_assert_eq!(expression.to_string().parse::<Expression>(), Ok(expression));
            }
        }
    }
}

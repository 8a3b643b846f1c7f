//! Conversion of Bazel's files to the tables.

use crate::{events, profile, report};

const PROFILE: &str = r#"{"otherData":{"build_id":"x"},"traceEvents":[
{"name":"thread_name","ph":"M","pid":1,"tid":0,"args":{"name":"Critical Path"}},
{"cat":"action processing","name":"Compiling b","ph":"X","ts":5,"dur":1600000,"args":{"target":"//a:b","mnemonic":"Rustc"}},
{"cat":"action processing","name":"Compiling c","ph":"X","ts":5,"dur":1400000,"args":{"target":"//a:c","mnemonic":"Rustc"}},
{"cat":"action processing","name":"Writing","dur":1000000,"args":{"target":"//a:d","mnemonic":"FileWrite"}},
{"cat":"action processing","name":"Linking","dur":7,"args":{"target":"//a:e","mnemonic":"Symlink"}},
{"cat":"action processing","name":"Testing","dur":9000000,"args":{"target":"//a:t","mnemonic":"TestRunner"}},
{"cat":"Fetching repository","name":"@@nix","dur":20},
{"cat":"Fetching repository","name":"@@serde","dur":2000000}]}"#;

const EVENTS: &str = r#"{"id":{"started":{}},"started":{"uuid":"x"}}
{"id":{"buildMetadata":{}},"buildMetadata":{"metadata":{"GRANARY_ROOT_SECONDS":"95","GRANARY_GENERATOR_SECONDS":""}}}
{"id":{"testResult":{"label":"//a:node","attempt":1}},"testResult":{"status":"FAILED","testAttemptDuration":"60.5s","testActionOutput":[{"name":"test.log","uri":"file:///logs/1"},{"name":"test.xml","uri":"file:///logs/1"}],"executionInfo":{"strategy":"linux-sandbox"}}}
{"id":{"testResult":{"label":"//a:node","attempt":2}},"testResult":{"status":"PASSED","testAttemptDuration":"30s","testActionOutput":[{"name":"test.log","uri":"file:///logs/2"}]}}
{"id":{"testResult":{"label":"//a:kernel"}},"testResult":{"status":"PASSED","cachedLocally":true,"testAttemptDuration":"0.5s","testActionOutput":[{"name":"test.log","uri":"file:///logs/3"}]}}
{"id":{"testResult":{"label":"//a:unit"}},"testResult":{"status":"PASSED","testAttemptDuration":"0.1s","executionInfo":{"cachedRemotely":true}}}
{"id":{"testSummary":{"label":"//a:unit"}},"testSummary":{"totalRunCount":1}}
{"id":{"buildMetrics":{}},"buildMetrics":{"actionSummary":{"actionData":[{"mnemonic":"Rustc","userTime":"3s","systemTime":"0.250s"},{"mnemonic":"TestRunner","userTime":"9s"}]},"timingMetrics":{"wallTimeInMs":"4500"}}}"#;

fn log(path: &str) -> String {
    let log = match path {
        "/logs/1" => "running 2 tests\ngranary-cost: boots=1 restores=0 pods=3\nok\n",
        "/logs/2" => "  granary-cost: pods=2 restores=4\r\nnot granary-cost: boots=7",
        "/logs/3" => "granary-cost: boots=1",
        _ => "",
    };
    log.to_owned()
}

#[test]
fn all_durations_are_in_a_table() {
    let (run, steps) = (events::run(EVENTS, log).unwrap(), profile::steps(PROFILE.as_bytes()).unwrap());
    let wanted = "\
| setup | s |
| --- | ---: |
| build root, once for each cache | 95 |
| @@serde | 2.0 |
| 1 other fetches | 0.0 |

| build | actions | s | share | CPU s |
| --- | ---: | ---: | ---: | ---: |
| Rustc | 2 | 3.0 | 75.0 % | 3.2 |
| FileWrite | 1 | 1.0 | 25.0 % | 0.0 |
| 1 others | 1 | 0.0 | 0.0 % | 0.0 |
| sum | 4 | 4.0 | 100.0 % | 3.2 |

| longest actions | s | kind |
| --- | ---: | ---: |
| //a:b | 1.6 | Rustc |
| //a:c | 1.4 | Rustc |
| //a:d | 1.0 | FileWrite |

| test | s | result | boots | restores | pods |
| --- | ---: | ---: | ---: | ---: | ---: |
| //a:node | 90.5 | passed | 1 | 4 | 5 |
| //a:kernel | 0.5 | passed, cached | 1 | 0 | 0 |
| 1 others | 0.1 | 1 cached | 0 | 0 | 0 |
| sum of 3 | 91.1 | 2 cached | 2 | 4 | 5 |
";
    let found = [report::setup(&run, &steps), report::build(&run, &steps), report::tests(&run)];
    assert_eq!(found.join("\n"), wanted);
    assert_eq!(run.wall.as_millis(), 4500);
}

#[test]
fn an_incomplete_file_is_an_error() {
    assert!(profile::steps(&PROFILE.as_bytes()[..300]).is_err());
    assert!(events::run(&EVENTS[..300], log).is_err());
}

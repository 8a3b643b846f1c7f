//! Conversion of [`tracing`] events to records.

use std::borrow::Cow;
use std::error::Error;
use std::fmt::{self, Write as _};

use tracing::field::{Field as Name, Visit};
use tracing::span::{Attributes, Id, Record as Values};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use crate::clip::Clipped;
use crate::record::{Field, MESSAGE, Origin, Record};
use crate::stream::Stream;

/// Target of events for output of other programs; the field `service` contains the program.
const PROGRAM: &str = "program";

/// Maximum formatted length of a value, longer than the stored length so that secrets are complete when they are
/// redacted.
const MOST: usize = 2 * MESSAGE;

/// A layer of a [`tracing_subscriber::Registry`]. Events contain the fields of their spans.
#[derive(Clone, Debug)]
pub struct Layer(Stream);

impl Stream {
    pub fn layer(&self) -> Layer {
        Layer(self.clone())
    }
}

impl<S: Subscriber + for<'span> LookupSpan<'span>> tracing_subscriber::Layer<S> for Layer {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut said = EventText::default();
        attributes.record(&mut said);
        if let Some(span) = context.span(id) {
            span.extensions_mut().replace(said);
        }
    }

    fn on_record(&self, id: &Id, values: &Values<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(said) = span.extensions_mut().get_mut::<EventText>()
        {
            values.record(said);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut said = EventText::default();
        event.record(&mut said);
        let metadata = event.metadata();
        let service = |said: &mut EventText| said.remove("service").unwrap_or_default();
        let (target, origin) = (said.remove("log.target"), metadata.target());
        let origin = match origin {
            PROGRAM => Origin::Program(service(&mut said)),
            // Events from the crate `log` have the target in a field.
            _ => Origin::Module(target.map_or(Cow::Borrowed(origin), Cow::Owned)),
        };
        said.fields.retain(|(name, _)| !name.starts_with("log."));
        let mut record = Record::now(*metadata.level(), origin, said.message);
        record.fields = said.fields;
        for span in context.event_scope(event).into_iter().flatten() {
            record.spans.insert(0, span.name());
            let extensions = span.extensions();
            let outer = extensions.get::<EventText>().map_or(&[][..], |said| &said.fields);
            for (name, value) in outer {
                if record.fields.iter().all(|(known, _)| known != name) {
                    record.fields.push((name.clone(), value.clone()));
                }
            }
        }
        self.0.log(record);
    }
}

#[derive(Debug, Default)]
struct EventText {
    message: String,
    fields: Vec<Field>,
}

impl EventText {
    fn add(&mut self, name: &Name, value: fmt::Arguments<'_>) {
        let mut text = String::new();
        let _ = Clipped { text: &mut text, most: MOST }.write_fmt(value);
        if name.name() == "message" {
            self.message = text;
        } else if let Some((_, before)) = self.fields.iter_mut().find(|(known, _)| known == name.name()) {
            *before = text;
        } else {
            self.fields.push((name.name().into(), text));
        }
    }

    fn remove(&mut self, name: &str) -> Option<String> {
        let at = self.fields.iter().position(|(known, _)| known == name)?;
        Some(self.fields.remove(at).1)
    }
}

impl Visit for EventText {
    fn record_str(&mut self, name: &Name, value: &str) {
        self.add(name, format_args!("{value}"));
    }

    fn record_error(&mut self, name: &Name, value: &(dyn Error + 'static)) {
        self.add(name, format_args!("{}", causes::line(value)));
    }

    fn record_debug(&mut self, name: &Name, value: &dyn fmt::Debug) {
        self.add(name, format_args!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use tracing::{Level, error, info, info_span, warn};
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;
    use crate::fake_sink::FakeSink;
    use crate::limiter::SourceLimit;

    fn said(speak: impl FnOnce()) -> Vec<Record> {
        let kept = FakeSink::default();
        let stream = Stream::start(vec![Box::new(kept.clone())], SourceLimit::default()).unwrap();
        tracing::subscriber::with_default(tracing_subscriber::registry().with(stream.layer()), speak);
        stream.close(std::time::Duration::ZERO);
        kept.records()
    }

    fn fields(record: &Record) -> Vec<(&str, &str)> {
        record.fields.iter().map(|(name, value)| (&**name, &**value)).collect()
    }

    #[test]
    fn an_event_contains_the_fields_of_its_spans() {
        let found = said(|| {
            let _provision = info_span!("provision", volume = "pvc-1", attempt = 1).entered();
            let _limit = info_span!("limit", project = 7).entered();
            warn!(attempt = 2, size = %"1 GiB", "not yet");
        });
        let record = &found[0];
        assert_eq!((record.level, &*record.message), (Level::WARN, "not yet"));
        assert_eq!(record.origin, Origin::Module(module_path!().into()));
        assert_eq!(record.spans, ["provision", "limit"]);
        assert_eq!(fields(record), [("attempt", "2"), ("size", "1 GiB"), ("project", "7"), ("volume", "pvc-1")]);
    }

    #[test]
    fn a_field_can_be_recorded_later() {
        let found = said(|| {
            let span = info_span!("provision", volume = tracing::field::Empty);
            span.record("volume", "pvc-2");
            span.in_scope(|| info!("made"));
        });
        assert_eq!(fields(&found[0]), [("volume", "pvc-2")]);
    }

    #[test]
    fn output_of_a_program_has_its_name() {
        let found = said(|| error!(target: "program", service = "etcd", caller = "a.go:1", "no disk"));
        assert_eq!(found[0].origin, Origin::Program("etcd".to_owned()));
        assert_eq!(fields(&found[0]), [("caller", "a.go:1")]);
    }

    #[test]
    fn an_error_contains_its_causes() {
        #[derive(Debug)]
        struct Outer(fmt::Error);
        impl fmt::Display for Outer {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("cannot write")
            }
        }
        impl Error for Outer {
            fn source(&self) -> Option<&(dyn Error + 'static)> {
                Some(&self.0)
            }
        }
        let found = said(|| {
            let error: &(dyn Error + 'static) = &Outer(fmt::Error);
            warn!(error, "it goes on");
        });
        assert_eq!(fields(&found[0]), [("error", &*format!("cannot write: {}", fmt::Error))]);
    }

    #[test]
    fn a_long_value_is_truncated() {
        let found = said(|| info!("{}", "x".repeat(1 << 20)));
        assert!(found[0].message.len() <= MESSAGE + '…'.len_utf8());
    }
}

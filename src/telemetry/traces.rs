//! Traces of changes of holder, sent to a collector by OTLP. Off unless the settings name a collector.
//!
//! While a change is under way, its steps are kept in a [`Trace`]. The spans are made when it has ended: one for the
//! change, and below it one for each step. They wait in a bounded queue for a thread of the SDK that sends them.
//! Nothing waits for it, and spans that find the queue full are dropped.

use std::time::{Duration, SystemTime};

use opentelemetry::{
    Context, KeyValue,
    trace::{Span, SpanBuilder, SpanKind, Status, TraceContextExt as _, Tracer as _, TracerProvider as _},
};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::{
    Resource,
    trace::{BatchConfigBuilder, BatchSpanProcessor, SdkTracer, SdkTracerProvider},
};

use super::{ChangeKind, collector::Collector};

/// The most spans that wait to be sent: enough for a thousand changes at once.
const QUEUE: usize = 8_192;
/// The most steps that are kept of one change. One whose steps fail may take any number.
const MOST_STEPS: usize = 100;
/// The most bytes of a problem that are kept. Messages of webhooks may be of any length.
const LONGEST_PROBLEM: usize = 512;
/// How long the end of the process waits for the last spans to be sent.
const LAST_SPANS: Duration = Duration::from_secs(2);

/// Traces cannot be sent.
#[derive(Debug, thiserror::Error)]
#[error(
    "traces cannot be sent to {endpoint}: {reason}; correct tracing.endpoint, or the variables OTEL_EXPORTER_OTLP_*"
)]
pub struct TracesError {
    endpoint: String,
    reason: String,
}

/// Makes traces, if they are on.
#[derive(Clone, Debug, Default)]
pub struct Traces(Option<(SdkTracerProvider, SdkTracer)>);

impl Traces {
    /// Traces of this replica, sent to the collector at this endpoint; without one they are off. Must be called in the
    /// runtime, which makes the requests.
    pub fn new(endpoint: Option<&str>, replica: &str) -> Result<Self, TracesError> {
        let Some(endpoint) = endpoint else { return Ok(Self::default()) };
        let refuse = |reason: String| TracesError { endpoint: endpoint.to_owned(), reason };
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Collector::new().map_err(|error| refuse(error.to_string()))?)
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(format!("{}/v1/traces", endpoint.trim_end_matches('/')))
            .build()
            .map_err(|error| refuse(error.to_string()))?;
        let config = BatchConfigBuilder::default().with_max_queue_size(QUEUE).build();
        let resource = Resource::builder()
            .with_service_name("leadergroup")
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .with_attribute(KeyValue::new("service.instance.id", replica.to_owned()));
        let processor = BatchSpanProcessor::builder(exporter).with_batch_config(config).build();
        let provider = SdkTracerProvider::builder().with_resource(resource.build());
        Ok(Self::of(provider.with_span_processor(processor).build()))
    }

    fn of(provider: SdkTracerProvider) -> Self {
        let tracer = provider.tracer("leadergroup");
        Self(Some((provider, tracer)))
    }

    /// Whether traces are made.
    pub fn are_on(&self) -> bool {
        self.0.is_some()
    }

    /// A step begins now. None if traces are off.
    pub fn begin(&self, name: &'static str) -> Option<Timer> {
        self.are_on().then(|| Timer { name, began: SystemTime::now() })
    }

    /// Makes the spans of a change that has ended.
    pub fn export(&self, trace: Trace) {
        let (Some((_, tracer)), Some((change, ended))) = (&self.0, trace.change) else { return };
        let since = ended.checked_sub(change.took).unwrap_or(ended);
        let began = trace.steps.iter().map(|step| step.began).fold(since, SystemTime::min);
        let root = SpanBuilder::from_name(change.name).with_start_time(began);
        let root = tracer.build_with_context(root.with_attributes(change.attributes()), &Context::new());
        let parent = Context::new().with_span(root);
        for step in trace.steps {
            let span = SpanBuilder::from_name(step.name).with_start_time(step.began);
            let mut span = tracer.build_with_context(span.with_kind(SpanKind::Client), &parent);
            if let Some(problem) = step.problem {
                span.set_status(Status::error(problem));
            }
            span.end_with_timestamp(step.ended);
        }
        parent.span().end_with_timestamp(ended);
    }

    /// Sends the last spans, and waits for that, within a bound.
    pub async fn end(self) {
        let Some((provider, _)) = self.0 else { return };
        let ended = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(LAST_SPANS)).await;
        if !matches!(ended, Ok(Ok(()))) {
            tracing::warn!("the last traces could not be sent");
        }
    }
}

/// A step that is under way.
#[derive(Debug)]
pub struct Timer {
    name: &'static str,
    began: SystemTime,
}

impl Timer {
    /// The step ends now, perhaps with a problem.
    pub fn end(self, mut problem: Option<String>) -> Step {
        if let Some(problem) = &mut problem {
            problem.truncate(problem.floor_char_boundary(LONGEST_PROBLEM));
        }
        Step { name: self.name, began: self.began, ended: SystemTime::now(), problem }
    }
}

/// A step that has ended.
#[derive(Debug)]
pub struct Step {
    name: &'static str,
    began: SystemTime,
    ended: SystemTime,
    problem: Option<String>,
}

/// What a trace is about.
#[derive(Debug)]
pub struct Traced {
    /// The name of its first span.
    pub name: &'static str,
    /// The namespace of the group.
    pub namespace: String,
    /// The group.
    pub group: String,
    /// What the change means for the former holder, and its reason. None for the deletion of a group.
    pub why: Option<(ChangeKind, String)>,
    /// The token of the term.
    pub token: i64,
    /// The former holder.
    pub from: Option<String>,
    /// The new holder.
    pub to: Option<String>,
    /// How long it took, as far as that is known. The steps may have begun earlier.
    pub took: Duration,
}

impl Traced {
    fn attributes(self) -> Vec<KeyValue> {
        let of = |name: &'static str, value: Option<String>| value.map(|value| KeyValue::new(name, value));
        let (kind, reason) = self.why.map(|(kind, reason)| (kind.word().to_owned(), reason)).unzip();
        let all = [
            of("leadergroup.namespace", Some(self.namespace)),
            of("leadergroup.group", Some(self.group)),
            of("leadergroup.kind", kind),
            of("leadergroup.reason", reason),
            Some(KeyValue::new("leadergroup.token", self.token)),
            of("leadergroup.from", self.from),
            of("leadergroup.to", self.to),
        ];
        all.into_iter().flatten().collect()
    }
}

/// The steps of one change, from its first one on.
#[derive(Debug, Default)]
pub struct Trace {
    steps: Vec<Step>,
    change: Option<(Traced, SystemTime)>,
}

impl Trace {
    /// A step ended.
    pub fn add(&mut self, step: Step) {
        if self.steps.len() < MOST_STEPS {
            self.steps.push(step);
        }
    }

    /// The change ends now. Steps that follow from it may still be added.
    pub fn end(&mut self, change: Traced) {
        self.change = Some((change, SystemTime::now()));
    }

    /// Whether the change has ended.
    pub fn has_ended(&self) -> bool {
        self.change.is_some()
    }
}

/// Spans for unit tests.
#[cfg(test)]
pub(crate) mod recorded {
    use std::sync::Arc;

    use opentelemetry_sdk::{
        error::OTelSdkResult,
        trace::{SpanData, SpanExporter},
    };
    use parking_lot::Mutex;

    use super::*;

    /// Keeps the spans.
    #[derive(Clone, Debug, Default)]
    pub(crate) struct Recorder(Arc<Mutex<Vec<SpanData>>>);

    impl SpanExporter for Recorder {
        async fn export(&self, mut batch: Vec<SpanData>) -> OTelSdkResult {
            self.0.lock().append(&mut batch);
            Ok(())
        }
    }

    impl Recorder {
        /// Traces whose spans come here.
        pub(crate) fn traces(&self) -> Traces {
            Traces::of(SdkTracerProvider::builder().with_simple_exporter(self.clone()).build())
        }

        /// Each span in the order in which they ended: its name, whether it is a child of the last one, its attributes
        /// and its error.
        pub(crate) fn spans(&self) -> Vec<(String, bool, String, String)> {
            let spans = self.0.lock();
            let root = spans.last().map(|span| span.span_context.clone());
            let of = |span: &SpanData| {
                let same = root.as_ref().map(|root| (root.trace_id(), root.span_id()));
                let parent = same == Some((span.span_context.trace_id(), span.parent_span_id));
                let attributes = span.attributes.iter().map(|pair| format!("{}={}", pair.key, pair.value));
                let error = match &span.status {
                    Status::Error { description } => description.to_string(),
                    _ => String::new(),
                };
                (span.name.to_string(), parent, attributes.collect::<Vec<_>>().join(" "), error)
            };
            spans.iter().map(of).collect()
        }

        /// When the last span began and ended, and when the first one did.
        pub(crate) fn times(&self) -> [SystemTime; 4] {
            let spans = self.0.lock();
            let (first, last) = (spans.first().expect("a span"), spans.last().expect("a span"));
            [last.start_time, last.end_time, first.start_time, first.end_time]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{recorded::Recorder, *};

    fn change(took: Duration) -> Traced {
        Traced {
            name: "change of holder",
            namespace: "shop".to_owned(),
            group: "web".to_owned(),
            why: Some((ChangeKind::Failure, "Silent".to_owned())),
            token: 7,
            from: Some("web-0".to_owned()),
            to: None,
            took,
        }
    }

    #[test]
    fn a_trace_is_a_span_for_the_change_and_below_it_one_for_each_step() {
        let recorder = Recorder::default();
        let traces = recorder.traces();
        let mut trace = Trace::default();
        let start = |name| traces.begin(name).expect("traces are on");
        trace.add(start("grant").end(None));
        trace.add(start("promote").end(Some("refused".to_owned())));
        assert!(!trace.has_ended());
        trace.end(change(Duration::from_secs(5)));
        traces.export(trace);
        let attributes = "leadergroup.namespace=shop leadergroup.group=web leadergroup.kind=failure \
                          leadergroup.reason=Silent leadergroup.token=7 leadergroup.from=web-0";
        let span = |name: &str, child, attributes: &str, error: &str| {
            (name.to_owned(), child, attributes.to_owned(), error.to_owned())
        };
        assert_eq!(
            recorder.spans(),
            [
                span("grant", true, "", ""),
                span("promote", true, "", "refused"),
                span("change of holder", false, attributes, ""),
            ]
        );
        let [began, ended, first_began, first_ended] = recorder.times();
        assert_eq!(ended.duration_since(began).ok(), Some(Duration::from_secs(5)));
        assert!(began < first_began && first_began <= first_ended && first_ended <= ended);
    }

    #[test]
    fn a_change_begins_no_later_than_its_first_step_and_keeps_a_bounded_number_of_them() {
        let recorder = Recorder::default();
        let traces = recorder.traces();
        let mut trace = Trace::default();
        for _ in 0..2 * MOST_STEPS {
            trace.add(traces.begin("grant").expect("traces are on").end(None));
        }
        trace.end(change(Duration::ZERO));
        traces.export(trace);
        assert_eq!(recorder.spans().len(), MOST_STEPS + 1);
        let [began, _, first_began, _] = recorder.times();
        assert_eq!(began, first_began);
    }

    #[test]
    fn nothing_is_measured_if_traces_are_off() {
        let traces = Traces::new(None, "one").expect("nothing can go wrong");
        assert!(!traces.are_on() && traces.begin("grant").is_none());
    }
}

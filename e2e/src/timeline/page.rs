//! The page: plain HTML with the pictures in it, which needs no other file and no network.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path, time::Duration};

use anyhow::{Context as _, Result};

use super::{GroupLine, Injected, Span, Timeline};
use crate::moment::Moment;

/// Another part of the same run, such as the simulation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What ran.
    pub name: String,
    /// Whether it passed.
    pub passed: bool,
    /// How long it took.
    pub took: Duration,
    /// What it says of itself, a line.
    pub says: String,
}

impl Step {
    /// Reads steps from a file: a line each, with the fields in their order, separated by tabs.
    pub fn read(file: &Path) -> Result<Vec<Self>> {
        let text = fs::read_to_string(file)?;
        let step = |line: &str| {
            let mut fields = line.splitn(4, '\t').map(str::to_owned);
            let (name, verdict) = (fields.next()?, fields.next()?);
            let took = Duration::from_secs(fields.next()?.parse().ok()?);
            Some(Self { name, passed: verdict == "passed", took, says: fields.next()? })
        };
        text.lines().map(|line| step(line).with_context(|| format!("no step: {line:?}"))).collect()
    }
}

/// The width of the pictures, in units of their own.
const WIDTH: f64 = 4_000.0;
/// The colours of a group's pods, in the order in which they were seen.
const COLOURS: [&str; 8] =
    ["#1f77b4", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#bcbd22", "#e377c2"];
/// The colour of what must not be: two active pods, lost calls.
const RED: &str = "#d62728";

const STYLE: &str = "
body { font: 14px/1.4 system-ui, sans-serif; margin: 1.5em; color: #222; }
h1 { font-size: 1.4em; } h2 { font-size: 1.1em; margin: 1.4em 0 .4em; }
.good { color: #fff; background: #2ca02c; padding: .2em .6em; border-radius: .3em; }
.bad { color: #fff; background: #d62728; padding: .2em .6em; border-radius: .3em; }
table { border-collapse: collapse; } td, th { padding: .15em .8em .15em 0; text-align: left; vertical-align: top; }
.lines { overflow-x: auto; border: 1px solid #ccc; position: relative; }
.line { display: flex; align-items: center; border-top: 1px solid #eee; }
.line b { position: sticky; left: 0; flex: 0 0 9em; background: #fff; padding: 0 .5em; font-weight: 500; z-index: 1; }
svg { flex: 0 0 auto; display: block; }
small { color: #666; }
";

/// Widens the pictures, and nothing else.
const SCRIPT: &str = "
const zoom = document.getElementById('zoom');
const widen = () => document.querySelectorAll('svg').forEach(s => s.style.width = `${zoom.value}px`);
zoom.addEventListener('input', widen); widen();
";

/// The page about a run and the other steps of it.
pub fn page(run: &Timeline, steps: &[Step]) -> String {
    let scale = Scale::of(run);
    let mut html = String::new();
    let good = run.found.is_empty() && steps.iter().all(|step| step.passed);
    let verdict = if good { "<span class=good>passed</span>" } else { "<span class=bad>failed</span>" };
    let title = escaped(&run.title);
    html.push_str("<!doctype html><html lang=en><meta charset=utf-8>");
    let _ = write!(html, "<title>{title}</title><style>{STYLE}</style><h1>{title} {verdict}</h1>");
    steps_table(&mut html, steps);
    list(&mut html, "What was found", &run.found);
    list(&mut html, "Notes", &run.notes);
    summary(&mut html, run);
    html.push_str(
        "<h2>Time lines</h2><p>Faults above; then for each group: the faults of its pods (grey), who carried the active \
         label (thick; white: none), what Kubernetes reported of its pods (ticks), and who answered each client (thin; \
         red: no answer). A colour is a pod. Point at something to read it.</p>\
         <p>Width: <input id=zoom type=range min=1200 max=40000 value=1600 step=200></p><div class=lines>",
    );
    axis(&mut html, &scale);
    for (kind, faults) in by_kind(&run.faults) {
        row(&mut html, &kind, 10.0, &faults.iter().map(|fault| injected(fault, &scale)).collect::<String>());
    }
    for group in &run.groups {
        group_row(&mut html, group, &run.faults, &scale);
    }
    html.push_str("</div>");
    changes_table(&mut html, run, &scale);
    let _ = write!(html, "<script>{SCRIPT}</script></html>");
    html
}

/// From moments to the pictures' units.
struct Scale {
    from: Moment,
    seconds: f64,
}

impl Scale {
    fn of(run: &Timeline) -> Self {
        Self { from: run.from, seconds: run.until.since(run.from).as_secs_f64().max(1.0) }
    }

    fn x(&self, at: Moment) -> f64 {
        at.since(self.from).as_secs_f64() / self.seconds * WIDTH
    }

    fn rect(
        &self,
        (from, until): (Moment, Moment),
        (y, height): (f64, f64),
        colour: &str,
        says: &str,
    ) -> String {
        let x = self.x(from);
        let width = (self.x(until) - x).max(0.6);
        format!(
            "<rect x={x:.2} y={y} width={width:.2} height={height} fill=\"{colour}\"><title>{}</title></rect>",
            escaped(says)
        )
    }

    fn says(&self, at: Moment) -> String {
        let seconds = at.since(self.from).as_secs_f64();
        let whole = Duration::from_secs_f64(seconds).as_secs();
        format!("{:02}:{:02}:{:06.3}", whole / 3_600, whole / 60 % 60, seconds % 60.0)
    }
}

fn steps_table(html: &mut String, steps: &[Step]) {
    if steps.is_empty() {
        return;
    }
    html.push_str("<h2>Steps</h2><table>");
    for Step { name, passed, took, says } in steps {
        let (class, verdict) = if *passed { ("good", "passed") } else { ("bad", "failed") };
        let _ = write!(
            html,
            "<tr><td>{}<td><span class={class}>{verdict}</span><td>{} s<td>{}",
            escaped(name),
            took.as_secs(),
            escaped(says)
        );
    }
    html.push_str("</table>");
}

fn list(html: &mut String, heading: &str, lines: &[String]) {
    if lines.is_empty() {
        return;
    }
    let items: String = lines.iter().map(|line| format!("<li>{}", escaped(line))).collect();
    let _ = write!(html, "<h2>{heading}</h2><ul>{items}</ul>");
}

/// Counts: the faults by kind, the changes by reason, and the longest time without an active pod.
fn summary(html: &mut String, run: &Timeline) {
    let faults: Vec<String> =
        by_kind(&run.faults).iter().map(|(kind, all)| format!("{} {kind}", all.len())).collect();
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    let later = |group: &GroupLine| group.changes.iter().skip(1).cloned().collect::<Vec<_>>();
    let changes: Vec<_> = run.groups.iter().flat_map(later).collect();
    for change in &changes {
        *reasons.entry(change.reason.as_deref().unwrap_or("?")).or_default() += 1;
    }
    let reasons: Vec<String> = reasons.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    let longest = changes.iter().map(|change| change.without_active).max().unwrap_or_default();
    let _ = write!(
        html,
        "<h2>Summary</h2><table><tr><td>length<td>{} min<tr><td>groups<td>{}<tr><td>faults<td>{}: {}\
         <tr><td>changes of holder<td>{}: {}<tr><td>longest time without an active label<td>{:.1} s</table>",
        run.until.since(run.from).as_secs() / 60,
        run.groups.len(),
        run.faults.len(),
        escaped(&faults.join(", ")),
        changes.len(),
        escaped(&reasons.join(", ")),
        longest.as_secs_f64()
    );
}

fn axis(html: &mut String, scale: &Scale) {
    let mut marks = String::new();
    let mut second = 0.0;
    while second < scale.seconds {
        let x = second / scale.seconds * WIDTH;
        let _ = write!(
            marks,
            "<rect x={x:.2} y=0 width=1 height=8 fill=\"#888\"><title>{second} s</title></rect>"
        );
        second += if scale.seconds > 600.0 { 60.0 } else { 10.0 };
    }
    row(html, "minutes", 10.0, &marks);
}

fn row(html: &mut String, name: &str, height: f64, inside: &str) {
    let _ = write!(
        html,
        "<div class=line><b>{}</b><svg height={height} viewBox=\"0 0 {WIDTH} {height}\" \
         preserveAspectRatio=none>{inside}</svg></div>",
        escaped(name)
    );
}

fn injected(fault: &Injected, scale: &Scale) -> String {
    let says = format!("{} {} at {}", fault.kind, fault.target, scale.says(fault.from));
    scale.rect((fault.from, fault.until), (1.0, 8.0), "#555", &says)
}

fn group_row(html: &mut String, group: &GroupLine, faults: &[Injected], scale: &Scale) {
    let name = |pod: usize| group.pods.get(pod).map_or("?", |(_, name)| name.as_str());
    let mut inside = String::new();
    for fault in faults.iter().filter(|fault| group.pods.iter().any(|(uid, _)| fault.pods.contains(uid))) {
        let says = format!("{} {}", fault.kind, fault.target);
        inside.push_str(&scale.rect((fault.from, fault.until), (0.0, 4.0), "#bbb", &says));
    }
    for span in &group.active {
        let pods: Vec<&str> = span.pods.iter().map(|pod| name(*pod)).collect();
        let token = span.token.map_or_else(|| "no token".to_owned(), |token| format!("token {token}"));
        let says = format!("active: {}, {token}, from {}", pods.join(" and "), scale.says(span.from));
        inside.push_str(&scale.rect((span.from, span.until), (5.0, 12.0), colour(span), &says));
    }
    for mark in &group.evidence {
        let says = format!("{}: {} at {}", name(mark.pod), mark.what, scale.says(mark.at));
        inside.push_str(&scale.rect((mark.at, mark.at), (18.0, 5.0), "#000", &says));
    }
    let mut y = 24.0;
    for client in &group.answered {
        for span in client {
            let who = span.pods.first().map_or("no answer", |pod| name(*pod));
            let says = format!("{who} from {} to {}", scale.says(span.from), scale.says(span.until));
            inside.push_str(&scale.rect((span.from, span.until), (y, 4.0), colour(span), &says));
        }
        y += 5.0;
    }
    row(html, &group.name, y + 1.0, &inside);
}

fn colour(span: &Span) -> &'static str {
    match span.pods.as_slice() {
        [pod] => COLOURS[pod % COLOURS.len()],
        _ => RED,
    }
}

fn changes_table(html: &mut String, run: &Timeline, scale: &Scale) {
    html.push_str(
        "<h2>Changes of holder</h2><table><tr><th>when<th>group<th>token<th>from<th>to<th>reason<th>without",
    );
    let name = |group: &GroupLine, pod: usize| {
        group.pods.get(pod).map_or_else(String::new, |(_, name)| escaped(name))
    };
    let mut all: Vec<_> =
        run.groups.iter().flat_map(|group| group.changes.iter().map(move |change| (group, change))).collect();
    all.sort_by_key(|(_, change)| change.at);
    for (group, change) in all {
        let _ = write!(
            html,
            "<tr><td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{:.3} s",
            scale.says(change.at),
            escaped(&group.name),
            change.token,
            change.from.map_or_else(String::new, |pod| name(group, pod)),
            name(group, change.to),
            escaped(change.reason.as_deref().unwrap_or_default()),
            change.without_active.as_secs_f64()
        );
    }
    html.push_str("</table>");
}

fn by_kind(faults: &[Injected]) -> BTreeMap<String, Vec<&Injected>> {
    let mut all: BTreeMap<String, Vec<&Injected>> = BTreeMap::new();
    for fault in faults {
        all.entry(fault.kind.clone()).or_default().push(fault);
    }
    all
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

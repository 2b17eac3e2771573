//! Time lines for the docs, as SVG: when each stage of a change ended.

use crate::plot::{BOTTOM, COLOURS, Canvas, HEIGHT, TOP, WIDTH, label, round_step};

/// A line that is this much longer than the median is cut off.
const LONGEST: f64 = 3.0;
/// The room for the names on the left, and for the numbers on the right.
const NAMES: f64 = 140.0;
const NUMBERS: f64 = 80.0;

/// Lines, one below the other: when their stages ended. A time of zero was not measured.
pub(crate) struct TimeLines {
    pub(crate) title: &'static str,
    pub(crate) stages: Vec<&'static str>,
    pub(crate) lines: Vec<(&'static str, Vec<f64>)>,
}

impl TimeLines {
    pub(crate) fn svg(&self) -> String {
        let mut canvas = Canvas::new(self.title, &self.stages);
        let end = |times: &[f64]| times.iter().copied().fold(0.0, f64::max);
        let mut ends: Vec<f64> = self.lines.iter().map(|(_, times)| end(times)).collect();
        ends.sort_by(f64::total_cmp);
        let median = ends.get(ends.len() / 2).copied().unwrap_or_default();
        let longest = ends.into_iter().rfind(|end| *end <= median * LONGEST).unwrap_or(1.0).max(1.0);
        let place = |time: f64| NAMES + (time / longest).min(1.0) * (WIDTH - NAMES - NUMBERS);
        let bottom = HEIGHT - BOTTOM;
        let step = round_step(longest / 8.0);
        let mut mark = 0.0;
        while mark <= longest {
            let x = place(mark);
            canvas.shape(&format!(
                "line x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{bottom}\" stroke=\"#cccccc\" stroke-width=\"1\""
            ));
            canvas.text(x, bottom + 18.0, "middle", &label(mark));
            mark += step;
        }
        let room = (bottom - TOP) / self.lines.len().max(1) as f64;
        for (row, (name, times)) in self.lines.iter().enumerate() {
            let y = TOP + room * (row as f64 + 0.25);
            let mut from = NAMES;
            for (time, colour) in times.iter().zip(COLOURS) {
                let to = place(*time).max(from);
                canvas.shape(&format!(
                    "rect x=\"{from:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{colour}\"",
                    to - from,
                    room * 0.5
                ));
                from = to;
            }
            let whole = end(times);
            let cut = if whole > longest { "\u{2026} " } else { "" };
            canvas.text(NAMES - 8.0, y + room * 0.25 + 4.0, "end", name);
            canvas.text(from + 6.0, y + room * 0.25 + 4.0, "start", &format!("{cut}{}", label(whole)));
        }
        canvas.finish()
    }
}

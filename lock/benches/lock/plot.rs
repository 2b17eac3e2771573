//! Pictures for the docs: curves and bars, as SVG that is readable on light and dark backgrounds.

use std::fmt::Write as _;

pub(crate) const WIDTH: f64 = 720.0;
pub(crate) const HEIGHT: f64 = 400.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
pub(crate) const TOP: f64 = 70.0;
pub(crate) const BOTTOM: f64 = 50.0;
/// Curves with more points are drawn without dots.
const MOST_DOTS: usize = 40;
/// Colours that colour-blind readers can distinguish.
pub(crate) const COLOURS: [&str; 5] = ["#0072b2", "#56b4e9", "#cc79a7", "#d55e00", "#009e73"];

/// A curve.
pub(crate) struct Series {
    pub(crate) name: &'static str,
    pub(crate) points: Vec<(f64, f64)>,
}

/// The scale of an axis.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Axis {
    Linear,
    Logarithmic,
}

/// Curves; the vertical axis is linear.
pub(crate) struct Lines {
    pub(crate) title: &'static str,
    pub(crate) x: &'static str,
    pub(crate) y: &'static str,
    pub(crate) across: Axis,
    pub(crate) series: Vec<Series>,
}

/// Bars in groups, one for each name; the vertical axis is logarithmic.
pub(crate) struct Bars {
    pub(crate) title: &'static str,
    pub(crate) names: Vec<&'static str>,
    pub(crate) groups: Vec<(String, Vec<f64>)>,
}

/// A picture that is being drawn.
pub(crate) struct Canvas(String);

impl Canvas {
    pub(crate) fn new(title: &str, names: &[&str]) -> Self {
        let mut canvas = Self(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
             font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
        ));
        canvas.text(WIDTH / 2.0, 22.0, "middle", title);
        let mut x = LEFT;
        for (name, colour) in names.iter().zip(COLOURS) {
            canvas.shape(&format!("rect x=\"{x:.0}\" y=\"38\" width=\"12\" height=\"12\" fill=\"{colour}\""));
            canvas.text(x + 18.0, 48.0, "start", name);
            x += 40.0 + 7.0 * name.len() as f64;
        }
        canvas
    }

    pub(crate) fn shape(&mut self, shape: &str) {
        self.0.push_str(&format!("<{shape}/>\n"));
    }

    pub(crate) fn text(&mut self, x: f64, y: f64, anchor: &str, text: &str) {
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        self.0.push_str(&format!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"#222222\">{text}</text>\n"
        ));
    }

    /// Draws a horizontal line at this height, with its label.
    fn level(&mut self, y: f64, label: &str) {
        let right = WIDTH - RIGHT;
        self.shape(&format!(
            "line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\" stroke=\"#cccccc\" stroke-width=\"1\""
        ));
        self.text(LEFT - 8.0, y + 4.0, "end", label);
    }

    pub(crate) fn finish(mut self) -> String {
        self.0.push_str("</svg>\n");
        self.0
    }
}

/// The coordinate of a share of the height.
fn height(share: f64) -> f64 {
    HEIGHT - BOTTOM - share.clamp(0.0, 1.0) * (HEIGHT - BOTTOM - TOP)
}

/// The next larger of 1, 2, 5, 10, 20, 50 and so on.
pub(crate) fn round_step(least: f64) -> f64 {
    let least = least.max(1e-3);
    let decade = 10_f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .map(|step| step * decade)
        .into_iter()
        .find(|step| *step >= least)
        .unwrap_or(decade * 10.0)
}

pub(crate) fn label(value: f64) -> String {
    crate::report::number(value).trim_end_matches(".00").trim_end_matches(".0").to_owned()
}

impl Lines {
    pub(crate) fn svg(&self) -> String {
        let names: Vec<_> = self.series.iter().map(|series| series.name).collect();
        let mut canvas = Canvas::new(self.title, &names);
        let all = || self.series.iter().flat_map(|series| &series.points);
        let (first, last) =
            all().fold((f64::MAX, f64::MIN), |(low, high), (x, _)| (low.min(*x), high.max(*x)));
        let most = all().fold(1.0, |most: f64, (_, y)| most.max(*y)) * 1.05;
        let (first, last) = if self.across == Axis::Linear { (0.0, last) } else { (first, last) };
        let share = |x: f64| match self.across {
            Axis::Linear => x / last.max(f64::EPSILON),
            Axis::Logarithmic => (x / first).ln() / (last / first).ln().max(f64::EPSILON),
        };
        let place = |x: f64| LEFT + share(x) * (WIDTH - LEFT - RIGHT - 20.0) + 10.0;
        for step in 0..=4 {
            let share = f64::from(step) / 4.0;
            canvas.level(height(share), &label((share * most).round()));
        }
        let step = round_step(last / 8.0);
        let mut x = first;
        while x <= last {
            canvas.text(place(x), HEIGHT - BOTTOM + 18.0, "middle", &label(x));
            x = if self.across == Axis::Linear { x + step } else { x * 10.0 };
        }
        canvas.text(WIDTH / 2.0, HEIGHT - 12.0, "middle", self.x);
        canvas.text(LEFT, TOP - 10.0, "end", self.y);
        for (series, colour) in self.series.iter().zip(COLOURS) {
            let mut points = String::new();
            for (x, y) in &series.points {
                let (x, y) = (place(*x), height(y / most));
                // Writing to a string cannot fail.
                let _ = write!(points, "{x:.1},{y:.1} ");
                if series.points.len() > MOST_DOTS {
                    continue;
                }
                canvas.shape(&format!("circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{colour}\""));
            }
            canvas.shape(&format!(
                "polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"",
                points.trim_end()
            ));
        }
        canvas.finish()
    }
}

impl Bars {
    pub(crate) fn svg(&self) -> String {
        let mut canvas = Canvas::new(self.title, &self.names);
        let all = || self.groups.iter().flat_map(|(_, values)| values).copied().filter(|value| *value > 0.0);
        let least = 10_f64.powf(all().fold(f64::MAX, f64::min).min(1e6).log10().floor());
        let most = 10_f64.powf(all().fold(1.0, f64::max).log10().ceil()).max(least * 10.0);
        let share = |value: f64| (value.max(least) / least).ln() / (most / least).ln();
        let mut level = least;
        while level <= most * 1.01 {
            canvas.level(height(share(level)), &label(level));
            level *= 10.0;
        }
        let room = (WIDTH - LEFT - RIGHT) / self.groups.len().max(1) as f64;
        let wide = room * 0.8 / self.names.len().max(1) as f64;
        for (place, (name, values)) in self.groups.iter().enumerate() {
            let left = LEFT + room * (place as f64 + 0.1);
            for (place, (value, colour)) in values.iter().zip(COLOURS).enumerate() {
                let (x, y) = (left + wide * place as f64, height(share(*value)));
                let tall = HEIGHT - BOTTOM - y;
                canvas.shape(&format!(
                    "rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{tall:.1}\" fill=\"{colour}\"",
                    wide - 2.0
                ));
            }
            canvas.text(left + room * 0.4, HEIGHT - BOTTOM + 18.0, "middle", name);
        }
        canvas.finish()
    }
}

//! Plots as SVG: panels below each other that share the horizontal axis.

use std::fmt::Write as _;

/// A line.
pub struct Line {
    /// What it shows.
    pub name: String,
    /// CSS colour.
    pub colour: &'static str,
    /// One value for each step of the horizontal axis.
    pub values: Vec<f64>,
}

/// Lines with a vertical axis of their own, which begins at 0.
pub struct Panel {
    /// What is shown, with its unit.
    pub title: String,
    /// Lines.
    pub lines: Vec<Line>,
}

const STRING: &str = "a string takes what is written to it";
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 120.0;
const LEFT: f64 = 64.0;
const GAP: f64 = 34.0;

/// Panels over `span`, the length of the horizontal axis in `unit`.
pub fn panels(title: &str, span: f64, unit: &str, panels: &[Panel]) -> String {
    let mut top = 30.0;
    let mut body = String::new();
    for panel in panels {
        top += 18.0;
        draw(&mut body, panel, top);
        top += HEIGHT + GAP - 18.0;
    }
    let (whole, middle) = (top + 8.0, LEFT + WIDTH / 2.0);
    for part in 0..=6 {
        let share = f64::from(part) / 6.0;
        let (x, y, value) = (LEFT + WIDTH * share, top - 14.0, span * share);
        push(
            &mut body,
            format_args!("<text x='{x:.0}' y='{y:.0}' text-anchor='middle'>{value:.0}</text>"),
        );
    }
    format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {:.0} {whole:.0}' font-family='sans-serif' font-size='11' \
         fill='#333'>\n<rect width='100%' height='100%' fill='white'/>\n<text x='{LEFT}' y='18' font-size='14'>{title}</text>\n\
         {body}<text x='{middle:.0}' y='{:.0}' text-anchor='middle'>{unit}</text>\n</svg>\n",
        LEFT + WIDTH + 16.0,
        top + 2.0,
    )
}

fn draw(body: &mut String, panel: &Panel, top: f64) {
    let bottom = top + HEIGHT;
    let highest = panel
        .lines
        .iter()
        .flat_map(|line| &line.values)
        .copied()
        .fold(0.0, f64::max);
    let most = round(highest);
    let title = top - 5.0;
    let mut legend = LEFT + 190.0;
    push(
        body,
        format_args!("<text x='{LEFT}' y='{title:.0}'>{}</text>", panel.title),
    );
    push(
        body,
        format_args!(
            "<rect x='{LEFT}' y='{top:.0}' width='{WIDTH}' height='{HEIGHT}' fill='none' stroke='#ccc'/>"
        ),
    );
    for (value, y) in [(most, top + 9.0), (0.0, bottom)] {
        let x = LEFT - 4.0;
        push(
            body,
            format_args!("<text x='{x:.0}' y='{y:.0}' text-anchor='end'>{value}</text>"),
        );
    }
    for line in &panel.lines {
        push(
            body,
            format_args!(
                "<text x='{legend:.0}' y='{title:.0}' fill='{}'>{}</text>",
                line.colour, line.name
            ),
        );
        legend += 110.0;
        let steps = f64::from(u32::try_from(line.values.len()).unwrap_or(u32::MAX)).max(2.0) - 1.0;
        let mut points = String::new();
        let mut step = 0.0;
        for value in &line.values {
            let (x, y) = (LEFT + WIDTH * step / steps, bottom - HEIGHT * value / most);
            write!(points, "{x:.1},{y:.1} ").expect(STRING);
            step += 1.0;
        }
        push(
            body,
            format_args!(
                "<polyline fill='none' stroke='{}' stroke-width='1.4' points='{}'/>",
                line.colour,
                points.trim_end()
            ),
        );
    }
}

fn push(body: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(body, "{line}").expect(STRING);
}

/// The next of 1, 2, 4, 5, 8, 10, 20, ... that is not less.
fn round(value: f64) -> f64 {
    let mut unit = 1.0;
    loop {
        for step in [1.0, 2.0, 4.0, 5.0, 8.0] {
            if value <= step * unit {
                return step * unit;
            }
        }
        unit *= 10.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_goes_from_edge_to_edge_and_the_axis_ends_at_a_round_number() {
        let line = Line {
            name: "depth".to_owned(),
            colour: "#000",
            values: vec![0.0, 30.0, 60.0],
        };
        let panel = Panel {
            title: "records".to_owned(),
            lines: vec![line],
        };
        let svg = panels("a plot", 60.0, "minutes", &[panel]);
        assert!(svg.contains(">80</text>"), "{svg}");
        assert!(
            svg.contains("points='64.0,168.0 424.0,123.0 784.0,78.0'"),
            "{svg}"
        );
        assert!(svg.contains(">minutes</text>"), "{svg}");
    }
}

//! Every picture can be read: no text is cut off or lies on another one or on the data, the legend is
//! complete, and ticks carry their units.

mod faults;

use std::path::{Path, PathBuf};

use cuda_mem_chart::reserved::{Curve, Curves, thinned};
use cuda_mem_chart::{Axis, Chart, Error, Level, Series, Unit, placement};
use faults::{Drawing, Faults};

const GIB: u64 = 1 << 30;

/// A saw that rises to `peak`, with a step for each of `count` operations.
fn saw(count: u64, peak: u64) -> impl ExactSizeIterator<Item = u64> {
    let count = u32::try_from(count).expect("a number of operations");
    (0..count).map(move |index| {
        let part = f64::from(index + 1) / f64::from(count);
        (peak as f64 * part * (1.0 - 0.5 * (part * 40.0).fract())) as u64
    })
}

fn curves(names: &[&str], operations: u64, peak: u64) -> Curves {
    let curve = |(index, name): (usize, &&str)| Curve {
        name: (*name).to_owned(),
        // The last one does not count what it reserves.
        reserved: (index + 1 < names.len())
            .then(|| thinned(saw(operations, peak + peak / 10 * index as u64))),
    };
    Curves {
        trace: "a-training-run.csv.gz".to_owned(),
        device: "NVIDIA H200, CUDA 13.0".to_owned(),
        operations,
        asked: thinned(saw(operations, peak)),
        resources: names.iter().enumerate().map(curve).collect(),
    }
}

fn level(name: &str, value: f64) -> Level {
    Level {
        name: name.to_owned(),
        value,
    }
}

const NAMES: [&str; 9] = [
    "pool",
    "arena",
    "arena-over-pool + limit=17179869184 + statistics",
    "default-pool",
    "host-pool",
    "managed-pool",
    "<pool> & \"more\"",
    "pinned",
    "direct",
];

/// With everything that a chart can have.
fn full() -> Chart {
    let top = 20.0 * GIB as f64;
    let levels = (0..6).map(|index| {
        level(
            &format!("allocator {index} peak"),
            top + f64::from(index) * 1e7,
        )
    });
    let mut chart = curves(&NAMES, 100_000, 20 * GIB).chart(levels.collect());
    chart.title = "A title that is longer than a line of the picture has room for, ".repeat(3);
    chart
}

fn drawn(chart: &Chart) -> Drawing {
    Drawing::read(&chart.svg().expect("there are points"))
}

#[test]
fn a_full_chart_has_no_faults() {
    let drawing = drawn(&full());
    assert_eq!(drawing.faults(), Faults::default());
    let mut expected = vec!["asked for"];
    expected.extend(&NAMES[..8]);
    assert_eq!(drawing.legend, expected);
    let notes: Vec<_> = drawing
        .texts
        .iter()
        .filter(|text| text.content.contains("direct"))
        .collect();
    assert_eq!(notes.len(), 1, "what has no line is named");
    for index in 0..6 {
        let name = format!("allocator {index} peak 20.");
        let labels = drawing
            .texts
            .iter()
            .filter(|text| text.content.starts_with(&name));
        assert_eq!(labels.count(), 1, "{name}");
    }
    assert_eq!(drawing.levels, 6);
}

#[test]
fn charts_of_any_size_have_no_faults() {
    for power in 0..=44 {
        for operations in [1, 2, 7, 1000, 71_623, 200_000] {
            let chart =
                curves(&["pool", "arena"], operations, 1 << power).chart(vec![level("peak", 1.0)]);
            let drawing = drawn(&chart);
            assert_eq!(
                drawing.faults(),
                Faults::default(),
                "2^{power} B, {operations} operations"
            );
            assert!(
                drawing.x_ticks.len() > 1 && drawing.y_ticks.len() > 1,
                "2^{power} B"
            );
            let units = ["B", "KiB", "MiB", "GiB", "TiB"];
            for tick in &drawing.y_ticks {
                let unit = tick.rsplit(' ').next();
                assert!(unit.is_some_and(|unit| units.contains(&unit)), "{tick:?}");
            }
        }
    }
}

#[test]
fn times_and_rates_carry_their_units() {
    for (unit, units) in [
        (Unit::Nanoseconds, &["ns", "µs", "ms", "s"][..]),
        (Unit::GigabytesPerSecond, &["GB/s"]),
    ] {
        for axis in [Axis::linear("", unit), Axis::logarithmic("", unit)] {
            for most in [2.5, 40.0, 7e3, 3e6, 1.1e8] {
                let chart = Chart {
                    lines: vec![Series::straight("line", vec![(4096.0, 0.9), (2e8, most)])],
                    ..Chart::new(
                        "Title",
                        Axis::logarithmic("size", Unit::Bytes),
                        axis.clone(),
                    )
                };
                let drawing = drawn(&chart);
                assert_eq!(drawing.faults(), Faults::default());
                for tick in &drawing.y_ticks {
                    assert!(
                        tick.rsplit(' ')
                            .next()
                            .is_some_and(|unit| units.contains(&unit)),
                        "{tick:?}"
                    );
                }
                assert!(
                    drawing.x_ticks.contains(&"64 KiB".to_owned()),
                    "{:?}",
                    drawing.x_ticks
                );
            }
        }
    }
}

#[test]
fn wide_names_make_the_picture_wider() {
    let word = "x".repeat(150);
    let mut chart = curves(&[&word, "direct"], 100, GIB).chart(vec![level(&word, 1e9)]);
    chart.notes = vec![word.clone()];
    let drawing = drawn(&chart);
    assert_eq!(drawing.faults(), Faults::default());
    assert!(drawing.width > 1500.0 && drawn(&full()).width == 880.0);
}

#[test]
fn a_line_has_a_point_for_each_pixel_and_keeps_its_peak() {
    let count = 1_000_000_u32;
    let line = |peak: f64| {
        let points = (0..count).map(|x| {
            (
                f64::from(x),
                if x == 654_321 { peak } else { f64::from(x % 2) },
            )
        });
        let chart = Chart {
            lines: vec![Series::steps("line", points.collect())],
            ..Chart::new(
                "Title",
                Axis::linear("", Unit::Count),
                Axis::linear("", Unit::Bytes),
            )
        };
        (chart.svg().expect("points").len(), drawn(&chart))
    };
    let (size, drawing) = line(1000.0);
    assert!(size < 64 << 10, "{size}");
    let frame = drawing.plots[0];
    let highest = drawing
        .lines
        .iter()
        .flatten()
        .map(|point| point.1)
        .fold(f64::MAX, f64::min);
    assert!(
        (highest - frame.top).abs() < 0.2,
        "the peak is a tick, and so the upper end: {highest} {frame:?}"
    );
    let (_, flat) = line(1.0);
    assert!(flat.lines[0].len() < 1000, "{}", flat.lines[0].len());
}

#[test]
fn an_area_alone_is_a_chart_and_nothing_is_none() {
    let drawing = drawn(&curves(&["direct"], 5, 1000).chart(Vec::new()));
    assert_eq!(drawing.faults(), Faults::default());
    assert_eq!(drawing.legend, ["asked for"]);
    let empty = Chart::new(
        "",
        Axis::linear("", Unit::Count),
        Axis::linear("", Unit::Bytes),
    );
    assert_eq!(empty.svg(), Err(Error::Empty));
    let below = Chart {
        lines: vec![Series::straight("line", vec![(1.0, 1.0), (2.0, -1.0)])],
        ..empty
    };
    assert_eq!(below.svg(), Err(Error::OffAxis(-1.0)));
}

fn reports() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/hardware");
    let files = std::fs::read_dir(folder).expect("the folder of reports");
    let files = files.map(|file| file.expect("a file").path());
    files
        .filter(|file| file.to_string_lossy().ends_with("-placement.json"))
        .collect()
}

#[test]
fn placements_are_drawn_without_faults_and_as_committed() {
    let reports = reports();
    assert!(!reports.is_empty());
    for file in reports {
        let name = file.display();
        let text = std::fs::read_to_string(&file).expect("a report");
        let report = placement::read(&text).expect("a report");
        let svg = placement::grid(&report)
            .and_then(|grid| grid.svg())
            .expect("a picture");
        let drawing = Drawing::read(&svg);
        assert_eq!(drawing.faults(), Faults::default(), "{name}");
        let rows = report["rows"].as_array().expect("rows");
        let kinds = rows.iter().filter_map(|row| row["kind"].as_str());
        let mut kinds: Vec<&str> = kinds
            .map(|kind| kind.trim_start_matches("managed, "))
            .collect();
        let mut legend = drawing.legend.clone();
        legend.sort();
        kinds.sort_unstable();
        kinds.dedup();
        assert_eq!(legend, kinds, "{name}");
        let committed = std::fs::read_to_string(file.with_extension("svg")).unwrap_or_default();
        assert!(
            committed == svg,
            "the picture of {name} is not up to date; `cargo run -p cuda-mem-chart -- placement REPORT.json -o \
             REPORT.svg` draws it"
        );
    }
}

/// The checks of this file find what they look for.
#[test]
fn faults_are_found() {
    let svg = full().svg().expect("there are points");
    let with =
        |element: &str| Drawing::read(&svg.replace("</svg>", &format!("{element}</svg>"))).faults();
    let drawing = Drawing::read(&svg);
    let frame = drawing.plots[0];
    let inside = (frame.left + 50.0, frame.top + 50.0);
    let text =
        |x: f64, y: f64| format!("<text font-size=\"11\" x=\"{x}\" y=\"{y}\">some words</text>");
    assert_eq!(
        with(&text(drawing.width - 20.0, 8.0)).outside,
        ["some words"]
    );
    assert_eq!(with(&text(-5.0, 300.0)).outside, ["some words"]);
    assert_eq!(with(&text(inside.0, inside.1)).on_data, ["some words"]);
    let key = drawing
        .texts
        .iter()
        .find(|text| text.content == "pool")
        .expect("a key");
    assert_eq!(
        with(&text(key.left, key.bottom)).overlapping,
        [["pool", "some words"]]
    );
    let line = format!(
        "<path class=\"line s0\" d=\"M{},{} V9\"/>",
        inside.0, inside.1
    );
    assert_eq!(with(&line).outside_of_plots, 1);
    let broken = svg.replacen("font-family=\"sans-serif\"", "font-family=\"Some Font\"", 1);
    assert_ne!(Drawing::read(&broken).faults(), Faults::default());
    let dark = svg.replacen("fill=\"#fff\" height=\"100%\"", "height=\"100%\"", 1);
    assert_ne!(Drawing::read(&dark).faults(), Faults::default());
}

cuda_mem_watchdog::watch_program!();

//! The rows as Markdown tables: all of them, or those in `docs/src/placement-design.md`.

use serde_json::Value;

const MISSING: &str = "–";

pub(crate) fn table(report: &Value) {
    let text = |key: &str| report[key].as_str().unwrap_or("?");
    println!(
        "back end: {}, {}, CUDA {}, {}\n{}\n",
        text("backend"),
        text("device"),
        text("driver"),
        text("cpu"),
        text("method")
    );
    for line in report["left_out"].as_array().into_iter().flatten() {
        println!("left out: {}", line.as_str().unwrap_or("?"));
    }
    println!(
        "| kind | size | device writes, reads | first pass | launch | step | host writes, reads | first pass | step | \
         allocate + free |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for row in rows(report) {
        println!(
            "| {} | {} | {} | {} | {} us | {} | {} | {} | {} | {} us |",
            name(row),
            size(row["bytes"].as_u64().unwrap_or(0)),
            rates(row, "device", ""),
            rates(row, "device", "first_"),
            short(row, "device_launch_us"),
            unit(short(row, "device_step_ns"), "ns"),
            rates(row, "host", ""),
            rates(row, "host", "first_"),
            host_step(row),
            short(row, "allocate_us"),
        );
    }
}

/// The two tables of the document, to be inserted unchanged between its marks.
pub(crate) fn markdown(report: &Value) {
    const MIDDLE: u64 = 16 << 20;
    const LARGE: u64 = 256 << 20;
    println!("Of 16 MiB, in GB/s:\n");
    println!(
        "| kind | the device writes, reads | its first pass | the host writes, reads | its first pass |"
    );
    println!("|---|---|---|---|---|");
    for row in rows(report).filter(|row| row["bytes"] == MIDDLE) {
        println!(
            "| {} | {} | {} | {}{} | {} |",
            name(row),
            rates(row, "device", ""),
            rates(row, "device", "first_"),
            rates(row, "host", ""),
            if row["host_access"] == "direct" {
                ""
            } else {
                ", by copies"
            },
            rates(row, "host", "first_"),
        );
    }
    println!("\nA step of a walk through 256 MiB, and the time to allocate and free:\n");
    println!(
        "| kind | step of the device | step of the host | 64 KiB | 2 MiB | 16 MiB | 256 MiB |"
    );
    println!("|---|---|---|---|---|---|---|");
    for row in rows(report).filter(|row| row["bytes"] == LARGE) {
        let made = |bytes: u64| {
            let mut same = rows(report)
                .filter(|other| other["kind"] == row["kind"] && other["bytes"] == bytes);
            same.next().map_or_else(
                || MISSING.to_owned(),
                |other| format!("{} µs", short(other, "allocate_us")),
            )
        };
        println!(
            "| {} | {} | {} | {} | {} | {} | {} |",
            name(row),
            unit(short(row, "device_step_ns"), "ns"),
            host_step(row),
            made(64 << 10),
            made(2 << 20),
            made(MIDDLE),
            made(LARGE),
        );
    }
}

fn rows(report: &Value) -> impl Iterator<Item = &Value> {
    report["rows"].as_array().into_iter().flatten()
}

fn name(row: &Value) -> &str {
    row["kind"].as_str().unwrap_or("?")
}

/// Write and read rates.
fn rates(row: &Value, who: &str, which: &str) -> String {
    let [write, read] =
        ["write", "read"].map(|what| short(row, &format!("{who}_{which}{what}_gb_s")));
    if write == MISSING && read == MISSING {
        return write;
    }
    format!("{write}, {read}")
}

/// For memory that the host cannot access, copies of a word instead.
fn host_step(row: &Value) -> String {
    if row["host_access"] == "direct" {
        return unit(short(row, "host_step_ns"), "ns");
    }
    let [write, read] = ["write", "read"].map(|what| short(row, &format!("host_word_{what}_us")));
    format!("{write}, {read} µs to copy a word")
}

fn unit(figure: String, unit: &str) -> String {
    match figure == MISSING {
        true => figure,
        false => format!("{figure} {unit}"),
    }
}

/// Three significant figures; a dash if not measured.
fn short(row: &Value, key: &str) -> String {
    match row[key].as_f64() {
        None => MISSING.to_owned(),
        Some(value) if value < 10.0 => format!("{value:.2}"),
        Some(value) if value < 100.0 => format!("{value:.1}"),
        Some(value) => format!("{value:.0}"),
    }
}

pub(crate) fn size(bytes: u64) -> String {
    match bytes {
        bytes if bytes >= 1 << 20 => format!("{} MiB", bytes >> 20),
        bytes => format!("{} KiB", bytes >> 10),
    }
}

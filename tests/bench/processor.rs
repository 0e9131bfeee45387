//! Processor time of servers: of a process, of its descendants, and of those that ended.

use std::collections::HashMap;
use std::time::Duration;

/// What the kernel says of one process.
struct Entry {
    parent: u32,
    /// Its own time and that of the children it waited for, in ticks.
    ticks: u64,
}

/// Processor time that `pid` and everything below it took since they began.
pub(crate) fn used(pid: u32) -> Duration {
    let entries: HashMap<u32, Entry> = std::fs::read_dir("/proc")
        .expect("/proc")
        .filter_map(|entry| {
            let pid: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            // Gone meanwhile: its parent has its time, or will.
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            Some((pid, read(&stat)?))
        })
        .collect();
    let parent = |pid: &u32| entries.get(pid).map(|entry| entry.parent);
    let is_below = |id: u32| std::iter::successors(Some(id), parent).any(|above| above == pid);
    let ticks: u64 = entries
        .iter()
        .filter(|(id, _)| is_below(**id))
        .map(|(_, entry)| entry.ticks)
        .sum();
    // A tick that user space sees is 10 ms on every Linux.
    Duration::from_millis(ticks * 10)
}

/// Fields of `/proc/<pid>/stat`: 4 is the parent; 14 to 17 are user and system time, its own and its children's. The
/// program's name, field 2, may hold spaces.
fn read(stat: &str) -> Option<Entry> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = fields.split(' ').collect();
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    Some(Entry {
        parent: u32::try_from(number(4)?).ok()?,
        ticks: (14..=17).map(number).sum::<Option<u64>>()?,
    })
}

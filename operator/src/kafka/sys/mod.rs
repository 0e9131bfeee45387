//! Calls into librdkafka's admin API, most of which rdkafka's own admin client lacks. The only module of the project
//! with unsafe code; it hands out plain Rust values and futures.
//!
//! Ownership, the same for every request: the arguments (options, lists, collections) belong to the caller, are
//! copied by the call and destroyed here afterwards; the call always leads to exactly one event on the result queue,
//! also when it was refused or timed out; the event owns everything that is read from it and is destroyed when
//! dropped. The request is told apart by a number carried as the event's opaque value, never a pointer, so that a
//! caller that has gone away leaves nothing behind.
//!
//! Why not rdkafka's `AdminClient` for what it has: it makes a client of the producer type, on which librdkafka
//! 2.12 dereferences a null consumer group, and so kills the process, as soon as a broker answers a request for
//! committed offsets with "not coordinator". A client of the consumer type with a group id, which never joins,
//! has that structure.
#![allow(unsafe_code)]

mod requests;

pub(super) use requests::{Description, PartitionOffset};

use super::error::Failure;
use fanout_contract::kafka::KEEP_CONNECTIONS;
use rdkafka::client::{Client, DefaultClientContext};
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::error::KafkaResult;
use rdkafka_sys as rd;
use rdkafka_sys::rd_kafka_admin_op_t as Op;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// How often the event thread looks whether anybody still holds the client.
const POLL: Duration = Duration::from_millis(250);

/// A client with a result queue of its own. The event thread ([`Native::serve`]) owns the last reference, because
/// destroying a client joins its threads and must not happen on an async worker.
pub(super) struct Native {
    // Fields drop in this order, and a queue has to go before its client.
    queue: Queue,
    client: Client<DefaultClientContext>,
    waiting: Mutex<HashMap<usize, oneshot::Sender<Event>>>,
    next_id: AtomicUsize,
}

impl Native {
    /// A client for `config`; its event thread is started and ends when the last other reference is gone.
    pub(super) fn start(
        mut config: ClientConfig,
        on_error: impl Fn(Failure) + Send + 'static,
    ) -> KafkaResult<Arc<Self>> {
        config
            // Never joined; see the module's text.
            .set("group.id", "fanout-operator")
            .set("enable.auto.commit", "false")
            .set(KEEP_CONNECTIONS.0, KEEP_CONNECTIONS.1)
            // Without this bit client-level errors are lost, and with them the difference between a wrong password
            // and a dead broker.
            .set("enabled_events", rd::RD_KAFKA_EVENT_ERROR.to_string())
            .set_log_level(RDKafkaLogLevel::Warning);
        let client = Client::new(
            &config,
            config.create_native_config()?,
            rd::RDKafkaType::RD_KAFKA_CONSUMER,
            DefaultClientContext,
        )?;
        let queue = Queue::new(client.native_ptr());
        let native = Arc::new(Self {
            queue,
            client,
            waiting: Mutex::default(),
            next_id: AtomicUsize::new(1),
        });
        let served = Arc::clone(&native);
        std::thread::Builder::new()
            .name("kafka-admin".to_owned())
            .spawn(move || served.serve(&on_error))
            .map_err(|_| rdkafka::error::KafkaError::ClientCreation("no thread".to_owned()))?;
        Ok(native)
    }

    /// Runs on the event thread: passes results to who waits for them and client-level errors to `on_error`.
    fn serve(self: Arc<Self>, on_error: &impl Fn(Failure)) {
        while Arc::strong_count(&self) > 1 {
            let Some(event) = self.queue.poll(POLL) else {
                continue;
            };
            match event.kind() {
                rd::RD_KAFKA_EVENT_ERROR => on_error(event.failure().unwrap_or(Failure::INVALID)),
                rd::RD_KAFKA_EVENT_LOG => event.log(),
                _ => {
                    let waiting = self.waiting().remove(&event.id());
                    // Nobody waits any more when the caller gave up: the event is destroyed here.
                    if let Some(waiting) = waiting {
                        drop(waiting.send(event));
                    }
                }
            }
        }
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, HashMap<usize, oneshot::Sender<Event>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends one request. `call` gets client, options and queue, valid during the call.
    fn request(
        &self,
        operation: Op,
        timeout: Duration,
        call: impl FnOnce(
            *mut rd::rd_kafka_t,
            *const rd::rd_kafka_AdminOptions_t,
            *mut rd::rd_kafka_queue_t,
        ),
    ) -> Request<'_> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = oneshot::channel();
        self.waiting().insert(id, sender);
        let client = self.client.native_ptr();
        let options = Options::new(client, operation, timeout, id);
        call(client, options.0.as_ptr(), self.queue.0.as_ptr());
        Request {
            native: self,
            id,
            receiver,
        }
    }
}

impl Drop for Native {
    fn drop(&mut self) {
        Queue::detach(self.client.native_ptr());
    }
}

/// A request under way; giving it up forgets it, its event is destroyed when it comes.
struct Request<'a> {
    native: &'a Native,
    id: usize,
    receiver: oneshot::Receiver<Event>,
}

impl Request<'_> {
    /// The event, if it is of `kind` and carries no error for the request as a whole.
    async fn result(mut self, kind: rd::rd_kafka_event_type_t) -> Result<Event, Failure> {
        let event = (&mut self.receiver).await.map_err(|_| Failure::TIMED_OUT)?;
        match event.failure() {
            Some(failure) => Err(failure),
            None if event.kind() != kind => Err(Failure::INVALID),
            None => Ok(event),
        }
    }
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        self.native.waiting().remove(&self.id);
    }
}

/// A queue that receives results, and all client-level events.
struct Queue(NonNull<rd::rd_kafka_queue_t>);

// SAFETY: librdkafka's queues are reference-counted and locked inside; any thread may use them.
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

impl Queue {
    fn new(client: *mut rd::rd_kafka_t) -> Self {
        // SAFETY: `client` is valid; the queue returned is ours.
        let queue = unsafe { rd::rd_kafka_queue_new(client) };
        // Nobody else reads these queues: forwarded, errors arrive here, and log lines do not pile up for ever.
        Self::forward(client, queue);
        Self(NonNull::new(queue).expect("rd_kafka_queue_new never returns null"))
    }

    /// Ends the forwarding set up by `new`.
    fn detach(client: *mut rd::rd_kafka_t) {
        Self::forward(client, ptr::null_mut());
    }

    /// Forwards the client's main and consumer queue to `to`, or nowhere.
    fn forward(client: *mut rd::rd_kafka_t, to: *mut rd::rd_kafka_queue_t) {
        // SAFETY: `client` is valid, `to` is a valid queue or null. Both getters return a reference that is ours
        // to give back; the consumer queue is null on a client without a group.
        unsafe {
            let own = [
                rd::rd_kafka_queue_get_main(client),
                rd::rd_kafka_queue_get_consumer(client),
            ];
            for queue in own.into_iter().filter(|queue| !queue.is_null()) {
                rd::rd_kafka_queue_forward(queue, to);
                rd::rd_kafka_queue_destroy(queue);
            }
        }
    }

    fn poll(&self, timeout: Duration) -> Option<Event> {
        let timeout = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: the queue is valid; the returned event, if any, is ours.
        NonNull::new(unsafe { rd::rd_kafka_queue_poll(self.0.as_ptr(), timeout) }).map(Event)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: ours, and not used again. Results that come later are discarded by librdkafka.
        unsafe { rd::rd_kafka_queue_destroy(self.0.as_ptr()) }
    }
}

/// Something a queue delivered.
struct Event(NonNull<rd::rd_kafka_event_t>);

// SAFETY: an event belongs to whoever polled it and is bound to no thread.
unsafe impl Send for Event {}

impl Event {
    const fn ptr(&self) -> *mut rd::rd_kafka_event_t {
        self.0.as_ptr()
    }

    fn kind(&self) -> rd::rd_kafka_event_type_t {
        // SAFETY: the event is valid.
        unsafe { rd::rd_kafka_event_type(self.ptr()) }
    }

    /// Number of the request this answers.
    fn id(&self) -> usize {
        // SAFETY: the event is valid; its opaque value is a number we set and is never dereferenced.
        unsafe { rd::rd_kafka_event_opaque(self.ptr()) }.addr()
    }

    fn failure(&self) -> Option<Failure> {
        // SAFETY: the event is valid.
        let code = unsafe { rd::rd_kafka_event_error(self.ptr()) } as i32;
        (code != 0).then_some(Failure(code))
    }

    /// Passes a log line on. librdkafka's lines name brokers, never credentials.
    fn log(&self) {
        let (mut facility, mut text, mut level) = (ptr::null(), ptr::null(), 0);
        // SAFETY: the event is valid, the strings are its own and copied before it goes.
        let line = unsafe {
            if rd::rd_kafka_event_log(self.ptr(), &raw mut facility, &raw mut text, &raw mut level)
                != 0
            {
                return;
            }
            string(text).unwrap_or_default()
        };
        tracing::debug!(target: "librdkafka", level, line);
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: ours, and not used again.
        unsafe { rd::rd_kafka_event_destroy(self.ptr()) }
    }
}

/// Options of one request.
struct Options(NonNull<rd::rd_kafka_AdminOptions_t>);

impl Options {
    fn new(client: *mut rd::rd_kafka_t, operation: Op, timeout: Duration, id: usize) -> Self {
        let timeout = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
        let mut text = [0; 128];
        // SAFETY: the client is valid, the options are ours, the text buffer is as long as said. The timeouts are
        // within librdkafka's bounds (an hour), and only requests that change topics have an operation timeout, so
        // the setters' results say nothing. The opaque value is a number.
        unsafe {
            let options = NonNull::new(rd::rd_kafka_AdminOptions_new(client, operation))
                .expect("every operation used here has options");
            for set in [
                rd::rd_kafka_AdminOptions_set_request_timeout,
                rd::rd_kafka_AdminOptions_set_operation_timeout,
            ] {
                set(options.as_ptr(), timeout, text.as_mut_ptr(), text.len());
            }
            rd::rd_kafka_AdminOptions_set_opaque(
                options.as_ptr(),
                ptr::without_provenance_mut::<c_void>(id),
            );
            Self(options)
        }
    }
}

impl Drop for Options {
    fn drop(&mut self) {
        // SAFETY: ours, and not used again.
        unsafe { rd::rd_kafka_AdminOptions_destroy(self.0.as_ptr()) }
    }
}

/// Partitions of one topic with an offset each.
struct List(NonNull<rd::rd_kafka_topic_partition_list_t>);

// SAFETY: a list is plain memory that belongs to whoever holds it.
unsafe impl Send for List {}

impl List {
    fn new(topic: &str, offsets: impl Iterator<Item = (i32, i64)>) -> Result<Self, Failure> {
        let topic = c_string(topic)?;
        // SAFETY: the list is ours and grows as needed; `add` copies the name and returns an element that stays
        // where it is until the next `add`.
        unsafe {
            let list =
                NonNull::new(rd::rd_kafka_topic_partition_list_new(8)).ok_or(Failure::INVALID)?;
            for (partition, offset) in offsets {
                let element =
                    rd::rd_kafka_topic_partition_list_add(list.as_ptr(), topic.as_ptr(), partition);
                (*element).offset = offset;
            }
            Ok(Self(list))
        }
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: ours, and not used again.
        unsafe { rd::rd_kafka_topic_partition_list_destroy(self.0.as_ptr()) }
    }
}

fn c_string(text: &str) -> Result<CString, Failure> {
    CString::new(text).map_err(|_| Failure::INVALID)
}

/// SAFETY: null, or a NUL-terminated string that is valid during the call.
unsafe fn string(text: *const c_char) -> Option<String> {
    // SAFETY: by contract.
    (!text.is_null()).then(|| {
        unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned()
    })
}

/// SAFETY: null, or `count` elements that are valid as long as their event, which must outlive the result.
unsafe fn slice<'a, T>(first: *mut *const T, count: usize) -> &'a [*const T] {
    if first.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: by contract.
    unsafe { std::slice::from_raw_parts(first, count) }
}

/// SAFETY: null, or a valid error object.
unsafe fn failure_of(error: *const rd::rd_kafka_error_t) -> Result<(), Failure> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: by contract.
    match unsafe { rd::rd_kafka_error_code(error) } as i32 {
        0 => Ok(()),
        code => Err(Failure(code)),
    }
}

/// SAFETY: a valid element of a partition list.
unsafe fn partition_offset(element: *const rd::rd_kafka_topic_partition_t) -> PartitionOffset {
    // SAFETY: by contract. The error is read as a number, because a newer broker may send one that the generated
    // enum does not know, and such a value of an enum would be undefined behaviour.
    unsafe {
        let code = (&raw const (*element).err).cast::<i32>().read();
        PartitionOffset {
            topic: string((*element).topic).unwrap_or_default(),
            partition: (*element).partition,
            offset: (*element).offset,
            error: (code != 0).then_some(Failure(code)),
        }
    }
}

/// SAFETY: group results of an event that outlives the call.
unsafe fn group_partitions(
    groups: &[*const rd::rd_kafka_group_result_t],
) -> Result<Vec<PartitionOffset>, Failure> {
    let group = *groups.first().ok_or(Failure::INVALID)?;
    // SAFETY: by contract; the list, where there is one, has `cnt` elements.
    unsafe {
        failure_of(rd::rd_kafka_group_result_error(group))?;
        let list = rd::rd_kafka_group_result_partitions(group);
        if list.is_null() {
            return Ok(Vec::new());
        }
        let count = usize::try_from((*list).cnt).unwrap_or(0);
        Ok((0..count)
            .map(|at| partition_offset((*list).elems.add(at)))
            .collect())
    }
}

//! Calls into librdkafka's admin API that rdkafka's own admin client lacks. The only module of the project with
//! unsafe code; it hands out plain Rust values and futures.
//!
//! Ownership, the same for every request: the arguments (options, lists, collections) belong to the caller, are
//! copied by the call and destroyed here afterwards; the call always leads to exactly one event on the result queue,
//! also when it was refused or timed out; the event owns everything that is read from it and is destroyed when
//! dropped. The request is told apart by a number carried as the event's opaque value, never a pointer, so that a
//! caller that has gone away leaves nothing behind.
#![allow(unsafe_code)]

use super::error::Failure;
use rdkafka::admin::AdminClient;
use rdkafka::client::DefaultClientContext;
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
    admin: AdminClient<DefaultClientContext>,
    waiting: Mutex<HashMap<usize, oneshot::Sender<Event>>>,
    next_id: AtomicUsize,
}

/// What a topic looks like to the brokers.
pub(super) struct Description {
    /// Most and least significant half of the topic id.
    pub(super) id: (i64, i64),
    pub(super) partitions: Vec<i32>,
    /// Of the first partition; 0 without one.
    pub(super) replication_factor: usize,
}

/// One partition of a request or a result: number, offset (or offset specification), error.
pub(super) struct PartitionOffset {
    pub(super) topic: String,
    pub(super) partition: i32,
    pub(super) offset: i64,
    pub(super) error: Option<Failure>,
}

impl Native {
    /// A client for `config`; its event thread is started and ends when the last other reference is gone.
    pub(super) fn start(
        mut config: ClientConfig,
        on_error: impl Fn(Failure) + Send + 'static,
    ) -> KafkaResult<Arc<Self>> {
        // Without this bit client-level errors are lost, and with them the difference between a wrong password
        // and a dead broker.
        config.set("enabled_events", rd::RD_KAFKA_EVENT_ERROR.to_string());
        config.set_log_level(RDKafkaLogLevel::Warning);
        let admin: AdminClient<DefaultClientContext> = config.create()?;
        let queue = Queue::new(admin.inner().native_ptr());
        let native = Arc::new(Self {
            queue,
            admin,
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

    /// rdkafka's admin client, for what it can do.
    pub(super) const fn admin(&self) -> &AdminClient<DefaultClientContext> {
        &self.admin
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
        let client = self.admin.inner().native_ptr();
        let options = Options::new(client, operation, timeout, id);
        call(client, options.0.as_ptr(), self.queue.0.as_ptr());
        Request {
            native: self,
            id,
            receiver,
        }
    }

    /// Metadata of one topic, its id included.
    pub(super) async fn describe_topic(
        &self,
        name: &str,
        timeout: Duration,
    ) -> Result<Description, Failure> {
        let name = c_string(name)?;
        let request = self.request(
            Op::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS,
            timeout,
            |rk, options, queue| {
                let mut names: [*const c_char; 1] = [name.as_ptr()];
                // SAFETY: `names` holds one valid string and outlives the calls; both copy it. The collection is ours
                // to destroy.
                unsafe {
                    let topics = rd::rd_kafka_TopicCollection_of_topic_names(
                        names.as_mut_ptr(),
                        names.len(),
                    );
                    rd::rd_kafka_DescribeTopics(rk, topics, options, queue);
                    rd::rd_kafka_TopicCollection_destroy(topics);
                }
            },
        );
        let event = request
            .result(rd::RD_KAFKA_EVENT_DESCRIBETOPICS_RESULT)
            .await?;
        // SAFETY: the event has the type that belongs to this accessor (checked by `result`); what it returns is
        // owned by the event, which lives to the end of this function.
        unsafe {
            let result = rd::rd_kafka_event_DescribeTopics_result(event.ptr());
            let mut count = 0;
            let topics = rd::rd_kafka_DescribeTopics_result_topics(result, &raw mut count);
            let topic = *slice(topics, count).first().ok_or(Failure::INVALID)?;
            failure_of(rd::rd_kafka_TopicDescription_error(topic))?;
            let id = rd::rd_kafka_TopicDescription_topic_id(topic);
            if id.is_null() {
                return Err(Failure::INVALID);
            }
            let partitions = rd::rd_kafka_TopicDescription_partitions(topic, &raw mut count);
            let partitions = slice(partitions, count);
            let mut replicas = 0;
            if let Some(first) = partitions.first() {
                rd::rd_kafka_TopicPartitionInfo_replicas(*first, &raw mut replicas);
            }
            Ok(Description {
                id: (
                    rd::rd_kafka_Uuid_most_significant_bits(id),
                    rd::rd_kafka_Uuid_least_significant_bits(id),
                ),
                partitions: partitions
                    .iter()
                    .map(|partition| rd::rd_kafka_TopicPartitionInfo_partition(*partition))
                    .collect(),
                replication_factor: replicas,
            })
        }
    }

    /// The cluster's id; `None` from brokers that have none.
    pub(super) async fn cluster_id(&self, timeout: Duration) -> Result<Option<String>, Failure> {
        let request = self.request(
            Op::RD_KAFKA_ADMIN_OP_DESCRIBECLUSTER,
            timeout,
            |rk, options, queue| {
                // SAFETY: all three are valid during the call, which takes ownership of none.
                unsafe { rd::rd_kafka_DescribeCluster(rk, options, queue) }
            },
        );
        let event = request
            .result(rd::RD_KAFKA_EVENT_DESCRIBECLUSTER_RESULT)
            .await?;
        // SAFETY: as in `describe_topic`; the string is copied before the event goes.
        unsafe {
            let result = rd::rd_kafka_event_DescribeCluster_result(event.ptr());
            Ok(string(rd::rd_kafka_DescribeCluster_result_cluster_id(
                result,
            )))
        }
    }

    /// Offsets of partitions of `topic` at the given specifications: an offset specification of librdkafka (negative)
    /// or a timestamp in Unix milliseconds. The offset in the result is -1 when no record is that young.
    pub(super) async fn list_offsets(
        &self,
        topic: &str,
        wanted: impl Iterator<Item = (i32, i64)>,
        timeout: Duration,
    ) -> Result<Vec<PartitionOffset>, Failure> {
        let list = List::new(topic, wanted)?;
        let request = self.request(
            Op::RD_KAFKA_ADMIN_OP_LISTOFFSETS,
            timeout,
            |rk, options, queue| {
                // SAFETY: the call copies the list, which lives until the end of this function.
                unsafe { rd::rd_kafka_ListOffsets(rk, list.0.as_ptr(), options, queue) }
            },
        );
        drop(list);
        let event = request
            .result(rd::RD_KAFKA_EVENT_LISTOFFSETS_RESULT)
            .await?;
        // SAFETY: as in `describe_topic`.
        unsafe {
            let result = rd::rd_kafka_event_ListOffsets_result(event.ptr());
            let mut count = 0;
            let infos = rd::rd_kafka_ListOffsets_result_infos(result, &raw mut count);
            Ok(slice(infos, count)
                .iter()
                .map(|info| {
                    partition_offset(rd::rd_kafka_ListOffsetsResultInfo_topic_partition(*info))
                })
                .collect())
        }
    }

    /// Every offset that `group` has committed, over all topics.
    pub(super) async fn group_offsets(
        &self,
        group: &str,
        timeout: Duration,
    ) -> Result<Vec<PartitionOffset>, Failure> {
        let group = c_string(group)?;
        let operation = Op::RD_KAFKA_ADMIN_OP_LISTCONSUMERGROUPOFFSETS;
        let request = self.request(operation, timeout, |rk, options, queue| {
            // SAFETY: `new` copies the group id, a null list means all partitions; the call copies the request,
            // of which librdkafka accepts exactly one, and which is ours to destroy.
            unsafe {
                let mut ask =
                    rd::rd_kafka_ListConsumerGroupOffsets_new(group.as_ptr(), ptr::null());
                rd::rd_kafka_ListConsumerGroupOffsets(rk, &raw mut ask, 1, options, queue);
                rd::rd_kafka_ListConsumerGroupOffsets_destroy(ask);
            }
        });
        let event = request
            .result(rd::RD_KAFKA_EVENT_LISTCONSUMERGROUPOFFSETS_RESULT)
            .await?;
        // SAFETY: as in `describe_topic`.
        unsafe {
            let result = rd::rd_kafka_event_ListConsumerGroupOffsets_result(event.ptr());
            let mut count = 0;
            let groups =
                rd::rd_kafka_ListConsumerGroupOffsets_result_groups(result, &raw mut count);
            group_partitions(slice(groups, count))
        }
    }

    /// Commits `offsets` of `topic` for a group without members. Brokers refuse per partition.
    pub(super) async fn alter_group_offsets(
        &self,
        group: &str,
        topic: &str,
        offsets: impl Iterator<Item = (i32, i64)>,
        timeout: Duration,
    ) -> Result<Vec<PartitionOffset>, Failure> {
        let group = c_string(group)?;
        let list = List::new(topic, offsets)?;
        let operation = Op::RD_KAFKA_ADMIN_OP_ALTERCONSUMERGROUPOFFSETS;
        let request = self.request(operation, timeout, |rk, options, queue| {
            // SAFETY: `new` copies group id and list; the call copies the request, which is ours to destroy.
            unsafe {
                let mut ask =
                    rd::rd_kafka_AlterConsumerGroupOffsets_new(group.as_ptr(), list.0.as_ptr());
                rd::rd_kafka_AlterConsumerGroupOffsets(rk, &raw mut ask, 1, options, queue);
                rd::rd_kafka_AlterConsumerGroupOffsets_destroy(ask);
            }
        });
        drop(list);
        let event = request
            .result(rd::RD_KAFKA_EVENT_ALTERCONSUMERGROUPOFFSETS_RESULT)
            .await?;
        // SAFETY: as in `describe_topic`.
        unsafe {
            let result = rd::rd_kafka_event_AlterConsumerGroupOffsets_result(event.ptr());
            let mut count = 0;
            let groups =
                rd::rd_kafka_AlterConsumerGroupOffsets_result_groups(result, &raw mut count);
            group_partitions(slice(groups, count))
        }
    }
}

impl Drop for Native {
    fn drop(&mut self) {
        Queue::detach(self.admin.inner().native_ptr());
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
        // SAFETY: `client` is valid. `queue_new` returns a queue that is ours; `get_main` a reference to the main
        // queue that is ours too and given back. rdkafka's admin client never reads the main queue: forwarded,
        // errors arrive here and log lines do not pile up for ever.
        unsafe {
            let queue = rd::rd_kafka_queue_new(client);
            let main = rd::rd_kafka_queue_get_main(client);
            rd::rd_kafka_queue_forward(main, queue);
            rd::rd_kafka_queue_destroy(main);
            Self(NonNull::new(queue).expect("rd_kafka_queue_new never returns null"))
        }
    }

    /// Ends the forwarding set up by `new`.
    fn detach(client: *mut rd::rd_kafka_t) {
        // SAFETY: as in `new`; a null destination ends the forwarding.
        unsafe {
            let main = rd::rd_kafka_queue_get_main(client);
            rd::rd_kafka_queue_forward(main, ptr::null_mut());
            rd::rd_kafka_queue_destroy(main);
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
        // SAFETY: the client is valid, the options are ours, the text buffer is as long as said. The timeout is
        // within librdkafka's bounds (an hour), so the setter's result says nothing. The opaque value is a number.
        unsafe {
            let options = NonNull::new(rd::rd_kafka_AdminOptions_new(client, operation))
                .expect("every operation used here has options");
            rd::rd_kafka_AdminOptions_set_request_timeout(
                options.as_ptr(),
                timeout,
                text.as_mut_ptr(),
                text.len(),
            );
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

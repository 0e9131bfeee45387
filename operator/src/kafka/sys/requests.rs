//! The requests: how each is built and how its result is read. Ownership is as described at the parent module.

use super::{
    List, Native, c_string, failure_of, group_partitions, partition_offset, slice, string,
};
use crate::kafka::error::Failure;
use rdkafka_sys as rd;
use rdkafka_sys::rd_kafka_admin_op_t as Op;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char};
use std::ptr::{self, NonNull};
use std::time::Duration;

/// What a topic looks like to the brokers.
pub(in crate::kafka) struct Description {
    /// Most and least significant half of the topic id.
    pub(in crate::kafka) id: (i64, i64),
    pub(in crate::kafka) partitions: Vec<i32>,
    /// Of the first partition; 0 without one.
    pub(in crate::kafka) replication_factor: usize,
}

/// One partition of a request or a result: number, offset (or offset specification), error.
pub(in crate::kafka) struct PartitionOffset {
    pub(in crate::kafka) topic: String,
    pub(in crate::kafka) partition: i32,
    pub(in crate::kafka) offset: i64,
    pub(in crate::kafka) error: Option<Failure>,
}

impl Native {
    /// Creates a topic; -1 stands for the broker's default.
    pub(in crate::kafka) async fn create_topic(
        &self,
        name: &str,
        (partitions, replication_factor): (i32, i32),
        config: &BTreeMap<String, String>,
        timeout: Duration,
    ) -> Result<(), Failure> {
        let name = c_string(name)?;
        let config = config
            .iter()
            .map(|(name, value)| Ok((c_string(name)?, c_string(value)?)))
            .collect::<Result<Vec<(CString, CString)>, Failure>>()?;
        let operation = Op::RD_KAFKA_ADMIN_OP_CREATETOPICS;
        let request = {
            let topic = new_topic(&name, partitions, replication_factor, &config)?;
            self.request(operation, timeout, |rk, options, queue| {
                let mut topics = [topic.as_ptr()];
                // SAFETY: the call copies the topic, which is ours to destroy.
                unsafe {
                    rd::rd_kafka_CreateTopics(rk, topics.as_mut_ptr(), 1, options, queue);
                    rd::rd_kafka_NewTopic_destroy(topic.as_ptr());
                }
            })
        };
        let event = request
            .result(rd::RD_KAFKA_EVENT_CREATETOPICS_RESULT)
            .await?;
        // SAFETY: the event has the type that belongs to this accessor (checked by `result`); what it returns is
        // owned by the event, which lives to the end of this function.
        unsafe {
            let result = rd::rd_kafka_event_CreateTopics_result(event.ptr());
            let mut count = 0;
            let topics = rd::rd_kafka_CreateTopics_result_topics(result, &raw mut count);
            topic_result(slice(topics, count))
        }
    }

    /// Deletes a topic.
    pub(in crate::kafka) async fn delete_topic(
        &self,
        name: &str,
        timeout: Duration,
    ) -> Result<(), Failure> {
        let name = c_string(name)?;
        let operation = Op::RD_KAFKA_ADMIN_OP_DELETETOPICS;
        let request = self.request(operation, timeout, |rk, options, queue| {
            // SAFETY: `new` copies the name; the call copies the topic, which is ours to destroy.
            unsafe {
                let topic = rd::rd_kafka_DeleteTopic_new(name.as_ptr());
                let mut all = [topic];
                rd::rd_kafka_DeleteTopics(rk, all.as_mut_ptr(), all.len(), options, queue);
                rd::rd_kafka_DeleteTopic_destroy(topic);
            }
        });
        let event = request
            .result(rd::RD_KAFKA_EVENT_DELETETOPICS_RESULT)
            .await?;
        // SAFETY: as in `create_topic`.
        unsafe {
            let result = rd::rd_kafka_event_DeleteTopics_result(event.ptr());
            let mut count = 0;
            let topics = rd::rd_kafka_DeleteTopics_result_topics(result, &raw mut count);
            topic_result(slice(topics, count))
        }
    }

    /// Deletes a consumer group. Brokers refuse while it has members.
    pub(in crate::kafka) async fn delete_group(
        &self,
        group: &str,
        timeout: Duration,
    ) -> Result<(), Failure> {
        let group = c_string(group)?;
        let operation = Op::RD_KAFKA_ADMIN_OP_DELETEGROUPS;
        let request = self.request(operation, timeout, |rk, options, queue| {
            // SAFETY: `new` copies the group id; the call copies the group, which is ours to destroy.
            unsafe {
                let ask = rd::rd_kafka_DeleteGroup_new(group.as_ptr());
                let mut all = [ask];
                rd::rd_kafka_DeleteGroups(rk, all.as_mut_ptr(), all.len(), options, queue);
                rd::rd_kafka_DeleteGroup_destroy(ask);
            }
        });
        let event = request
            .result(rd::RD_KAFKA_EVENT_DELETEGROUPS_RESULT)
            .await?;
        // SAFETY: as in `create_topic`.
        unsafe {
            let result = rd::rd_kafka_event_DeleteGroups_result(event.ptr());
            let mut count = 0;
            let groups = rd::rd_kafka_DeleteGroups_result_groups(result, &raw mut count);
            let group = *slice(groups, count).first().ok_or(Failure::INVALID)?;
            failure_of(rd::rd_kafka_group_result_error(group))
        }
    }

    /// Raises the number of partitions of a topic to `total`.
    pub(in crate::kafka) async fn add_partitions(
        &self,
        name: &str,
        total: usize,
        timeout: Duration,
    ) -> Result<(), Failure> {
        let name = c_string(name)?;
        let operation = Op::RD_KAFKA_ADMIN_OP_CREATEPARTITIONS;
        let request = {
            let partitions = new_partitions(&name, total)?;
            self.request(operation, timeout, |rk, options, queue| {
                let mut all = [partitions.as_ptr()];
                // SAFETY: the call copies the request, which is ours to destroy.
                unsafe {
                    rd::rd_kafka_CreatePartitions(rk, all.as_mut_ptr(), 1, options, queue);
                    rd::rd_kafka_NewPartitions_destroy(partitions.as_ptr());
                }
            })
        };
        let event = request
            .result(rd::RD_KAFKA_EVENT_CREATEPARTITIONS_RESULT)
            .await?;
        // SAFETY: as in `create_topic`.
        unsafe {
            let result = rd::rd_kafka_event_CreatePartitions_result(event.ptr());
            let mut count = 0;
            let topics = rd::rd_kafka_CreatePartitions_result_topics(result, &raw mut count);
            topic_result(slice(topics, count))
        }
    }

    /// Settings of a topic that have a value that may be shown.
    pub(in crate::kafka) async fn topic_config(
        &self,
        name: &str,
        timeout: Duration,
    ) -> Result<BTreeMap<String, String>, Failure> {
        let name = c_string(name)?;
        let operation = Op::RD_KAFKA_ADMIN_OP_DESCRIBECONFIGS;
        let request = self.request(operation, timeout, |rk, options, queue| {
            // SAFETY: `new` copies the name and returns null only for an unknown resource type; the call copies
            // the resource, which is ours to destroy.
            unsafe {
                let resource = rd::rd_kafka_ConfigResource_new(
                    rd::rd_kafka_ResourceType_t::RD_KAFKA_RESOURCE_TOPIC,
                    name.as_ptr(),
                );
                let mut all = [resource];
                rd::rd_kafka_DescribeConfigs(rk, all.as_mut_ptr(), all.len(), options, queue);
                rd::rd_kafka_ConfigResource_destroy(resource);
            }
        });
        let event = request
            .result(rd::RD_KAFKA_EVENT_DESCRIBECONFIGS_RESULT)
            .await?;
        // SAFETY: as in `create_topic`; strings are copied before the event goes.
        unsafe {
            let result = rd::rd_kafka_event_DescribeConfigs_result(event.ptr());
            let mut count = 0;
            let resources = rd::rd_kafka_DescribeConfigs_result_resources(result, &raw mut count);
            let resource = *slice(resources, count).first().ok_or(Failure::INVALID)?;
            let code = rd::rd_kafka_ConfigResource_error(resource) as i32;
            if code != 0 {
                return Err(Failure(code));
            }
            let entries = rd::rd_kafka_ConfigResource_configs(resource, &raw mut count);
            Ok(slice(entries, count)
                .iter()
                .filter_map(|entry| {
                    Some((
                        string(rd::rd_kafka_ConfigEntry_name(*entry))?,
                        string(rd::rd_kafka_ConfigEntry_value(*entry))?,
                    ))
                })
                .collect())
        }
    }

    /// Metadata of one topic, its id included.
    pub(in crate::kafka) async fn describe_topic(
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
        // SAFETY: as in `create_topic`.
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
    pub(in crate::kafka) async fn cluster_id(
        &self,
        timeout: Duration,
    ) -> Result<Option<String>, Failure> {
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
        // SAFETY: as in `create_topic`; the string is copied before the event goes.
        unsafe {
            let result = rd::rd_kafka_event_DescribeCluster_result(event.ptr());
            Ok(string(rd::rd_kafka_DescribeCluster_result_cluster_id(
                result,
            )))
        }
    }

    /// Offsets of partitions of `topic` at the given specifications: an offset specification of librdkafka (negative)
    /// or a timestamp in Unix milliseconds. The offset in the result is -1 when no record is that young.
    pub(in crate::kafka) async fn list_offsets(
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
        // SAFETY: as in `create_topic`.
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
    pub(in crate::kafka) async fn group_offsets(
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
        // SAFETY: as in `create_topic`.
        unsafe {
            let result = rd::rd_kafka_event_ListConsumerGroupOffsets_result(event.ptr());
            let mut count = 0;
            let groups =
                rd::rd_kafka_ListConsumerGroupOffsets_result_groups(result, &raw mut count);
            group_partitions(slice(groups, count))
        }
    }

    /// Commits `offsets` of `topic` for a group without members. Brokers refuse per partition.
    pub(in crate::kafka) async fn alter_group_offsets(
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
        // SAFETY: as in `create_topic`.
        unsafe {
            let result = rd::rd_kafka_event_AlterConsumerGroupOffsets_result(event.ptr());
            let mut count = 0;
            let groups =
                rd::rd_kafka_AlterConsumerGroupOffsets_result_groups(result, &raw mut count);
            group_partitions(slice(groups, count))
        }
    }
}

/// A topic to create, which is the caller's to destroy.
fn new_topic(
    name: &CStr,
    partitions: i32,
    replication_factor: i32,
    config: &[(CString, CString)],
) -> Result<NonNull<rd::rd_kafka_NewTopic_t>, Failure> {
    let mut text = [0; 128];
    // SAFETY: `new` copies the name and fills at most the buffer's length; null means refused. `set_config` copies
    // both strings.
    unsafe {
        let topic = NonNull::new(rd::rd_kafka_NewTopic_new(
            name.as_ptr(),
            partitions,
            replication_factor,
            text.as_mut_ptr(),
            text.len(),
        ))
        .ok_or(Failure::INVALID)?;
        for (name, value) in config {
            rd::rd_kafka_NewTopic_set_config(topic.as_ptr(), name.as_ptr(), value.as_ptr());
        }
        Ok(topic)
    }
}

/// A request for more partitions, which is the caller's to destroy.
fn new_partitions(
    name: &CStr,
    total: usize,
) -> Result<NonNull<rd::rd_kafka_NewPartitions_t>, Failure> {
    let mut text = [0; 128];
    // SAFETY: as in `new_topic`.
    let partitions = unsafe {
        rd::rd_kafka_NewPartitions_new(name.as_ptr(), total, text.as_mut_ptr(), text.len())
    };
    NonNull::new(partitions).ok_or(Failure::INVALID)
}

/// SAFETY: topic results of an event that outlives the call.
unsafe fn topic_result(topics: &[*const rd::rd_kafka_topic_result_t]) -> Result<(), Failure> {
    let topic = *topics.first().ok_or(Failure::INVALID)?;
    // SAFETY: by contract.
    match unsafe { rd::rd_kafka_topic_result_error(topic) } as i32 {
        0 => Ok(()),
        code => Err(Failure(code)),
    }
}

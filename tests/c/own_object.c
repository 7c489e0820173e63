/* An embedder's object: epoll, poll and select see it, and release is called once. */
#include "check.h"

#ifndef KERNEL_ONLY
struct mailbox {
	uint32_t ready;
	int released;
};

static uint32_t mailbox_poll(void *context)
{
	return __atomic_load_n(&((struct mailbox *)context)->ready, __ATOMIC_SEQ_CST);
}

static void mailbox_release(void *context)
{
	((struct mailbox *)context)->released++;
}

static struct mailbox mailbox;
static int object;

static void *delivers(void *unused)
{
	(void)unused;
	sleep_ms(50);
	__atomic_store_n(&mailbox.ready, EPOLLIN, __ATOMIC_SEQ_CST);
	CHECK(upoll_object_wake(object, EPOLLIN) == 0);
	return NULL;
}
#endif

int main(void)
{
#ifdef KERNEL_ONLY
	return 77;
#else
	struct upoll_object_ops ops = {sizeof ops, mailbox_poll, mailbox_release};
	struct epoll_event event;
	struct pollfd entry;
	pthread_t thread;
	fd_set in;
	int epfd = epoll_create1(0), copy;
	FAILS(upoll_object_create(NULL, NULL, 0), EFAULT);
	FAILS(upoll_object_create(&ops, NULL, 1), EINVAL);
	object = upoll_object_create(&ops, &mailbox, O_CLOEXEC);
	CHECK(object >= 0 && fcntl(object, F_GETFD) == FD_CLOEXEC);
	FAILS(upoll_object_wake(epfd, 0), EINVAL);
	FAILS(upoll_object_wake(900, 0), EBADF);
	CHECK(add(epfd, object, EPOLLIN | EPOLLET, 3) == 0);
	CHECK(epoll_wait(epfd, &event, 1, 0) == 0);
	CHECK(pthread_create(&thread, NULL, delivers, NULL) == 0);
	CHECK(epoll_wait(epfd, &event, 1, -1) == 1 && event.data.u64 == 3);
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(epoll_wait(epfd, &event, 1, 0) == 0);
	entry.fd = object;
	entry.events = POLLIN | POLLOUT;
	CHECK(poll(&entry, 1, 0) == 1 && entry.revents == POLLIN);
	FD_ZERO(&in);
	FD_SET(object, &in);
	CHECK(select(object + 1, &in, NULL, NULL, NULL) == 1);
	FAILS(read(object, &event, 8), EINVAL);
	copy = dup(object);
	CHECK(close(object) == 0 && mailbox.released == 0);
	CHECK(close(copy) == 0 && mailbox.released == 1);
	return 0;
#endif
}

/* Malformed control messages fail with the kernel's errors, on kernel sockets and on user-level ones. */
#include "../c/check.h"

static int pair[2];

static int sends(void *control, size_t size)
{
	struct iovec data = {"x", 1};
	struct msghdr message;
	struct mmsghdr messages;
	int one, many;
	memset(&message, 0, sizeof message);
	message.msg_iov = &data, message.msg_iovlen = 1;
	message.msg_control = control, message.msg_controllen = size;
	errno = 0;
	one = sendmsg(pair[0], &message, MSG_DONTWAIT) == -1 ? errno : 0;
	memset(&messages, 0, sizeof messages);
	messages.msg_hdr = message;
	errno = 0;
	many = sendmmsg(pair[0], &messages, 1, MSG_DONTWAIT) == -1 ? errno : 0;
	CHECK(one == many);
	return one;
}

/* A message has 253 fds at most. With more, none of their objects is demoted. */
static void carries_too_many(void)
{
	static union {
		struct cmsghdr header;
		char room[CMSG_SPACE(254 * sizeof(int))];
	} control;
	int fds[254], counter = eventfd(3, EFD_NONBLOCK);
	CHECK(counter >= 0 && socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0);
	for (int at = 0; at < 254; at++)
		fds[at] = counter;
	control.header.cmsg_level = SOL_SOCKET, control.header.cmsg_type = SCM_RIGHTS;
	control.header.cmsg_len = CMSG_LEN(sizeof fds);
	memcpy(CMSG_DATA(&control.header), fds, sizeof fds);
	CHECK(sends(&control, sizeof control) == EINVAL);
	control.header.cmsg_len = CMSG_LEN(253 * sizeof(int));
	CHECK(sends(&control, CMSG_SPACE(253 * sizeof(int))) == 0);
	CHECK(close(pair[0]) == 0 && close(pair[1]) == 0 && close(counter) == 0);
}

/* A length without a place, on a socket that no other such message has been sent by. */
static void have_no_place(int kind)
{
	CHECK(socketpair(AF_UNIX, kind, 0, pair) == 0);
	CHECK(sends(NULL, CMSG_SPACE(sizeof(int))) == EFAULT);
	CHECK(close(pair[0]) == 0 && close(pair[1]) == 0);
}

static void fail(int kind)
{
	/* The memory of this message ends at an unmapped page. */
	char *pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	size_t room = CMSG_SPACE(sizeof(int));
	struct cmsghdr *header;
	int counter = eventfd(3, 0);
	uint64_t count;
	CHECK(pages != MAP_FAILED && counter >= 0);
	CHECK(mprotect(pages + 4096, 4096, PROT_NONE) == 0);
	CHECK(socketpair(AF_INET6, SOCK_STREAM, 0, pair) == -1);
	CHECK(socketpair(AF_UNIX, kind, 0, pair) == 0);
	header = (struct cmsghdr *)(pages + 4096 - room);
	header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS;
	memcpy(CMSG_DATA(header), &counter, sizeof counter);

	header->cmsg_len = 1 << 20;
	CHECK(sends(header, room) == EINVAL);
	header->cmsg_len = (size_t)-1;
	CHECK(sends(header, room) == EINVAL);
	header->cmsg_len = 1;
	CHECK(sends(header, room) == EINVAL);
	header->cmsg_len = 0;
	CHECK(sends(header, room) == EINVAL);
	header->cmsg_len = CMSG_LEN(sizeof(int));
	/* The length exceeds the memory. */
	CHECK(sends(header, 4096) == EFAULT);
	/* The kernel refuses this length before it reads the message. */
	CHECK(sends(header, (size_t)INT32_MAX + 1) == ENOBUFS);
	header->cmsg_type = SCM_CREDENTIALS, header->cmsg_len = (size_t)-1;
	CHECK(sends(header, (size_t)-1) == ENOBUFS);
	header->cmsg_type = SCM_RIGHTS, header->cmsg_len = CMSG_LEN(sizeof(int));
	CHECK(sends(pages + 4096, room) == EFAULT);
	CHECK(sends(pages + 4096 - 8, room) == EFAULT);
	/* Less than a header is ignored. */
	CHECK(sends(header, 4) == 0);
	CHECK(sends(header, room) == 0);
	CHECK(read(counter, &count, sizeof count) == sizeof count && count == 3);
	/* Another message without a length, which a walk would not get beyond. */
	header->cmsg_type = SCM_CREDENTIALS, header->cmsg_len = 0;
	CHECK(sends(header, room) == EINVAL);
	CHECK(close(pair[0]) == 0 && close(pair[1]) == 0 && close(counter) == 0);
}

int main(void)
{
	alarm(200);
	have_no_place(SOCK_DGRAM);
	have_no_place(SOCK_STREAM);
	fail(SOCK_DGRAM);
	fail(SOCK_STREAM);
	carries_too_many();
	return 0;
}

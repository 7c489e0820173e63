/* A receive that has a part of its data and waits for the rest gets the fd that comes with the
 * rest. */
#include "../c/check.h"

static int pair[2];

union control {
	struct cmsghdr header;
	char room[CMSG_SPACE(sizeof(int))];
};

static void *receives(void *nothing)
{
	char bytes[8];
	struct iovec list = {bytes, sizeof bytes};
	union control control;
	struct msghdr message;
	struct cmsghdr *header;
	int fd;
	memset(&message, 0, sizeof message);
	message.msg_iov = &list, message.msg_iovlen = 1;
	message.msg_control = &control, message.msg_controllen = sizeof control;
	CHECK(recvmsg(pair[0], &message, MSG_WAITALL) == 8);
	CHECK(memcmp(bytes, "abcdefgh", 8) == 0 && message.msg_flags == 0);
	header = CMSG_FIRSTHDR(&message);
	CHECK(header != NULL && header->cmsg_type == SCM_RIGHTS);
	CHECK(header->cmsg_len == CMSG_LEN(sizeof(int)));
	memcpy(&fd, CMSG_DATA(header), sizeof fd);
	CHECK(fcntl(fd, F_GETFD) >= 0 && close(fd) == 0);
	return nothing;
}

int main(void)
{
	struct iovec list = {"efgh", 4};
	union control control;
	struct msghdr message;
	pthread_t receiver;
	alarm(200);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	CHECK(pthread_create(&receiver, NULL, receives, NULL) == 0);
	CHECK(send(pair[1], "abcd", 4, 0) == 4);
	/* By then the receiver most likely waits for the rest. */
	sleep_ms(100);
	memset(&control, 0, sizeof control);
	memset(&message, 0, sizeof message);
	message.msg_iov = &list, message.msg_iovlen = 1;
	message.msg_control = &control, message.msg_controllen = sizeof control;
	control.header.cmsg_level = SOL_SOCKET, control.header.cmsg_type = SCM_RIGHTS;
	control.header.cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(&control.header), &pair[1], sizeof pair[1]);
	CHECK(sendmsg(pair[1], &message, 0) == 4);
	CHECK(pthread_join(receiver, NULL) == 0);
	return 0;
}

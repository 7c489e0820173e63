/* Messages of one byte that carry a descriptor. */
#ifndef RIGHTS_H
#define RIGHTS_H

#include "check.h"

struct carrier {
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))];
	char byte;
	struct iovec data;
};

/* Returns a message with the room that the carrier has. */
static inline struct msghdr message_in(struct carrier *carrier)
{
	struct msghdr message;
	memset(&message, 0, sizeof message);
	memset(carrier, 0, sizeof *carrier);
	carrier->data.iov_base = &carrier->byte, carrier->data.iov_len = 1;
	message.msg_iov = &carrier->data, message.msg_iovlen = 1;
	message.msg_control = carrier->control, message.msg_controllen = sizeof carrier->control;
	return message;
}

static inline struct msghdr message_with(struct carrier *carrier, int fd)
{
	struct msghdr message = message_in(carrier);
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof fd);
	memcpy(CMSG_DATA(header), &fd, sizeof fd);
	return message;
}

static inline void send_fd(int to, int fd)
{
	struct carrier carrier;
	struct msghdr message = message_with(&carrier, fd);
	CHECK(sendmsg(to, &message, 0) == 1);
}

static inline int receive_fd(int from)
{
	struct carrier carrier;
	struct msghdr message = message_in(&carrier);
	int fd;
	CHECK(recvmsg(from, &message, 0) == 1 && message.msg_controllen == sizeof carrier.control);
	CHECK(CMSG_FIRSTHDR(&message)->cmsg_type == SCM_RIGHTS);
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
	return fd;
}

#endif

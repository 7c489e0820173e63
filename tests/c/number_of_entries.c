/* poll takes the number of its entries as an unsigned int: the upper half of an nfds_t is ignored. */
#include "check.h"

int main(void)
{
	const nfds_t beyond = (nfds_t)1 << 32;
	int counter = eventfd(1, 0);
	struct timespec now = {0, 0};
	struct pollfd entries[2] = {{counter, POLLIN, 0}, {counter, POLLOUT, 0}};
	if (sizeof(nfds_t) <= sizeof(unsigned))
		return 77;
	CHECK(counter >= 0);
	CHECK(poll(entries, beyond + 2, 0) == 2);
	CHECK(poll(entries, beyond + 1, -1) == 1);
	CHECK(ppoll(entries, beyond + 2, &now, NULL) == 2);
	CHECK(poll(entries, beyond, 0) == 0);
	return 0;
}

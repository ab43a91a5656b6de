/*
 * The two halves of the stand-in for nvidia-cuda-mps-control: the daemon, and what its command line
 * shares with it.
 */
#ifndef VRAMCAP_SIM_MPS_DAEMON_H
#define VRAMCAP_SIM_MPS_DAEMON_H

#define MPS_BEHAVIOUR_FILE "sim_behaviour"

enum mps_behaviour { MPS_ANSWER, MPS_HANG, MPS_FAIL, MPS_LIE };

/* The word in VRAMCAP_SIM_MPS_CONTROL, else in the pipe directory's sim_behaviour; `answer` without
 * either, or for any other word. */
enum mps_behaviour mps_behaviour_read(const char *pipe_directory);

/* Makes the directory's files and the socket to listen at; -1, and a line on stderr. */
int mps_daemon_listen(const char *pipe_directory);
/* Serves until `quit`; the exit status. */
int mps_daemon_serve(const char *pipe_directory, int listener);

#endif
